"""What a training run is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from archc.errors import Problem, SpecError
from archc.ir.tape import RECOMPUTE, Recompute
from archc.planning.options import unknown_word
from archc.planning.parallel import Parallel

OPTIMIZERS = ("adamw", "muon", "sgd")
SCHEDULES = ("cosine", "wsd", "constant")
DTYPES = ("float32", "bfloat16")
PIPELINES = ("1f1b", "gpipe")
BALANCES = ("sequence", "batch")
PACKINGS = ("packed", "documents")
LEARNING_RATES = {"adamw": 3e-4, "muon": 2e-3, "sgd": 1e-2}
"""Default peak by optimizer."""
MOST_WARMUP_STEPS = 2000
LEAST_CHECKPOINT_STEPS = 50
MIN_LR_RATIOS = {"cosine": 0.1, "wsd": 0.0, "constant": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """A run. ``batch_size`` sequences of ``seq_len`` targets make one optimizer step, over all copies and micro-batches.

    * ``micro_batch_size``: sequences of one pass on one copy; None: all that a copy has.
    * ``lr`` is the peak, by default ``LEARNING_RATES``; ``min_lr_ratio`` of it is left at the end; ``warmup_steps`` by default a
      tenth of ``steps``, at most 2,000; ``decay_steps`` (schedule ``wsd``) by default a tenth.
    * ``weight_decay`` acts on what is drawn around zero, tables of embeddings too unless ``decay_embeddings`` is off;
      ``momentum`` is Muon's and SGD's.
    * ``dtype``: what is computed in; parameters and optimizer states are float32.
    * ``loss_chunk``: tokens whose logits exist at once; None: as many as make 2**27 logits, at least 256.
    * ``z_loss``: factor of the squared log-partition of the logits (PaLM, arXiv 2204.02311).
    * ``router_bias_rate``: step of the auxiliary-loss-free balancing (arXiv 2408.15664), where routers have such a bias;
      ``balance_loss`` and ``router_z_loss``: factors of losses that routers get beside it; ``balance_over``: loads of each
      ``sequence`` are evened out, or those of a ``batch``, all sequences of a pass.
    * ``checkpoint_every`` steps, by default a tenth of them, at least 50, the run's state is saved; at the end in any case.
    * ``zero``: what is cut over dp x cp: 3 parameters too, 2 gradients and optimizer states; parameters stay gathered in a step.
    """

    steps: int
    seq_len: int = 512
    batch_size: int = 16
    micro_batch_size: int | None = None
    seed: int = 0
    packing: str = "packed"
    optimizer: str = "adamw"
    lr: float | None = None
    min_lr_ratio: float | None = None
    warmup_steps: int | None = None
    schedule: str = "cosine"
    decay_steps: int | None = None
    weight_decay: float = 0.1
    decay_embeddings: bool = True
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip_norm: float | None = 1.0
    dtype: str = "float32"
    recompute: Recompute = "none"
    compile: bool = False
    loss_chunk: int | None = None
    z_loss: float = 0.0
    router_bias_rate: float = 1e-3
    balance_loss: float = 0.0
    balance_over: str = "sequence"
    router_z_loss: float = 0.0
    parallel: Parallel = field(default_factory=Parallel)
    zero: int = 3
    pp_schedule: str = "1f1b"
    device: str | None = None
    checkpoint_every: int | None = None
    keep: int = 2
    log_every: int = 10
    eval_every: int | None = None
    eval_batches: int = 8
    sample_every: int | None = None
    spike_factor: float | None = None

    @property
    def checkpoint_interval(self) -> int:
        """Steps between checkpoints, beside the one at the end."""
        return max(self.steps // 10, LEAST_CHECKPOINT_STEPS) if self.checkpoint_every is None else self.checkpoint_every

    @property
    def peak_lr(self) -> float:
        return LEARNING_RATES[self.optimizer] if self.lr is None else self.lr

    @property
    def warmup(self) -> int:
        """Steps over which the learning rate rises."""
        return min(self.steps // 10, MOST_WARMUP_STEPS) if self.warmup_steps is None else self.warmup_steps

    @property
    def decay(self) -> int:
        """Steps over which it falls at the end of schedule ``wsd``."""
        return self.steps // 10 if self.decay_steps is None else self.decay_steps

    @property
    def least_lr_ratio(self) -> float:
        return MIN_LR_RATIOS[self.schedule] if self.min_lr_ratio is None else self.min_lr_ratio

    @property
    def copy_rows(self) -> int:
        """Sequences of a step on each copy of the model."""
        return self.batch_size // self.parallel.dp

    @property
    def micro_rows(self) -> int:
        """Sequences of one pass on one copy."""
        return self.copy_rows if self.micro_batch_size is None else self.micro_batch_size

    @property
    def micro_batches(self) -> int:
        """Passes of a step on each copy of the model."""
        return self.copy_rows // self.micro_rows

    def notes(self) -> list[str]:
        """What is allowed and slow."""
        stages, passes = self.parallel.pp, self.micro_batches
        if passes >= stages:
            return []
        idle = (stages - 1) / (passes + stages - 1)
        return [
            f"{passes} micro-batch{'es' if passes > 1 else ''} on {stages} stages (pp): each waits {idle:.0%} of the time; "
            f"state a micro_batch_size of at most {max(1, self.copy_rows // stages)}, or a larger batch_size"
        ]

    def check(self) -> TrainOptions:
        """Itself.

        Raises:
            SpecError: options that can't be; every reason is listed.
        """
        problems = list(self._problems())
        if problems:
            raise SpecError([Problem(message=message, code="training") for message in problems])
        return self

    def _problems(self) -> Iterator[str]:
        yield from self.parallel.problems()
        for name in (
            "steps",
            "seq_len",
            "batch_size",
            "micro_batch_size",
            "loss_chunk",
            "keep",
            "log_every",
            "eval_batches",
        ):
            value: int | None = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name} should be at least 1 (found {value})"
        for name in ("checkpoint_every", "eval_every", "sample_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name} should be at least 1 (found {value})"
        words = (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("schedule", self.schedule, SCHEDULES),
            ("dtype", self.dtype, DTYPES),
            ("recompute", self.recompute, RECOMPUTE),
            ("pp_schedule", self.pp_schedule, PIPELINES),
            ("packing", self.packing, PACKINGS),
            ("balance_over", self.balance_over, BALANCES),
        )
        for name, word, known in words:
            yield from unknown_word(name, word, known)
        if self.parallel.cp > 1 and self.seq_len % (2 * self.parallel.cp):
            yield (
                f"seq_len: {self.seq_len:,} tokens are no multiple of 2 x cp, {2 * self.parallel.cp}: each rank gets two equal "
                "pieces of a sequence"
            )
        if self.zero not in (2, 3):
            yield f"zero should be 2 or 3 (found {self.zero}): FSDP2 always cuts gradients and optimizer states"
        for name in (
            "lr",
            "weight_decay",
            "eps",
            "z_loss",
            "router_bias_rate",
            "balance_loss",
            "router_z_loss",
            "clip_norm",
        ):
            number: float | None = getattr(self, name)
            if number is not None and not 0 <= number < float("inf"):
                yield f"{name} should be a number of at least 0 (found {number})"
        if any(not 0 <= beta < 1 for beta in self.betas):
            yield f"betas should lie within 0 and 1 (found {', '.join(map(str, self.betas))})"
        if not 0 <= self.momentum < 1:
            yield f"momentum should lie within 0 and 1 (found {self.momentum})"
        if self.spike_factor is not None and self.spike_factor <= 1:
            yield f"spike_factor should be above 1 (found {self.spike_factor})"
        if self.steps >= 1 and self.warmup > self.steps:
            yield f"warmup_steps, {self.warmup}, are more than steps, {self.steps}"
        if self.schedule == "wsd" and self.steps >= 1 and self.warmup + self.decay > self.steps:
            yield f"warmup_steps, {self.warmup}, and decay_steps, {self.decay}, are more than steps, {self.steps}"
        dp = self.parallel.dp
        if dp >= 1 and self.batch_size % dp:
            yield f"batch_size, {self.batch_size}, can't be shared by {dp} copies (dp)"
        elif dp >= 1 and self.micro_batch_size and self.micro_batch_size > 0 and self.copy_rows % self.micro_batch_size:
            yield f"micro_batch_size, {self.micro_batch_size}, doesn't divide the {self.copy_rows} sequences of a copy"

    def to_json(self) -> dict[str, Any]:
        """Plain data, as a run folder keeps it."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**found, "parallel": self.parallel.to_json(), "betas": list(self.betas)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TrainOptions:
        """What ``to_json`` gave."""
        return cls(**{**data, "parallel": Parallel(**data["parallel"]), "betas": tuple(data["betas"])})
