"""The loop: batches, gradients, a check, the optimizer's step, and what is said and kept of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archc.training.checkpoints import Checkpoints
from archc.training.clipping import clip_gradients
from archc.training.objectives.batch import Batch
from archc.training.objectives.objective import Objective
from archc.training.optimizers import make_optimizer
from archc.training.options import TrainOptions
from archc.training.parallel.world import World
from archc.training.prepare import Prepared
from archc.training.record import Ending, StepRecord, TrainResult
from archc.training.requests import peak_memory_bytes, stop_requests
from archc.training.routers import router_metrics, update_biases
from archc.training.schedules import lr_at, set_lr
from archc.training.state import state_of
from archc.training.watching.speed import Speed
from archc.training.watching.stops import StopRule
from archc.training.watching.watcher import RunInfo, Sample, Watchers

MOST_RECORDS = 100_000
"""Steps that a result remembers, the last ones; metrics.jsonl has all."""

Sampler = Callable[[int], list[Sample]]
"""Texts of the model as it is after a step. All ranks call it, and the first one's are told."""


@dataclass(eq=False)
class Trainer:
    """A run on this rank; all ranks call the same methods alike. ``watchers`` has any on the first rank only."""

    prepared: Prepared
    objective: Objective
    options: TrainOptions
    world: World
    speed: Speed
    checkpoints: Checkpoints | None = None
    watchers: Watchers = field(default_factory=Watchers)
    evaluation: Objective | None = None
    sampler: Sampler | None = None
    step: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.optimizer = make_optimizer(self.prepared.module, self.options)
        self.rule = StopRule(self.options.spike_factor)
        self._last: StepRecord | None = None
        self._eval_loss: float | None = None

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint: weights, optimizer states, and the place in the data.

        Raises:
            ArchcError: it doesn't fit.
        """
        assert self.checkpoints is not None
        meta = self.checkpoints.load(path, self._state())
        self.step, self.tokens = meta["step"], meta["tokens"]
        self.rule = StopRule(self.options.spike_factor, meta["usual_losses"])

    def run(self, info: RunInfo) -> TrainResult:
        """Steps until there are as many as wanted, or something ends them."""
        self.watchers.on_start(info)
        records: deque[StepRecord] = deque(maxlen=MOST_RECORDS)
        ending: Ending = "finished"
        reason = ""
        with stop_requests() as requested:
            while self.step < self.options.steps:
                record, reason, is_interrupted = self._one_step(requested)
                if reason:
                    ending = "stopped"
                    break
                records.append(record)
                self._now_and_then(record)
                if is_interrupted and self.step < self.options.steps:
                    ending, reason = "interrupted", f"interrupted after step {self.step:,}"
                    break
        return self._finish(ending, reason, list(records))

    def _one_step(self, requested: Callable[[], bool]) -> tuple[StepRecord, str, bool]:
        """(the step, why it must not move the weights, whether any rank was asked to stop)."""
        begin = time.perf_counter()
        options, number = self.options, self.step + 1
        set_lr(self.optimizer, rate := lr_at(self.step, options))
        targets = self.objective.targets(number)
        loss = self.prepared.engine.forward_backward(self._micro_batches(self.objective, number), self._weight(targets))
        norm = clip_gradients(
            self.prepared.module.parameters(), options.clip_norm, self.world, elsewhere=self.prepared.elsewhere
        )
        step_loss, step_norm, is_interrupted = self._agreed(loss, norm, requested)
        reason = self.rule.reason(number, step_loss, step_norm)
        if not reason:
            self.optimizer.step()
            update_biases(self.prepared.module, options, self.world)
            self.step, self.tokens = number, self.tokens + targets
        self.optimizer.zero_grad()
        extras: dict[str, float | int | None] = {}
        if number % options.log_every == 0 or number in (1, options.steps):
            extras |= router_metrics(self.prepared.module, self.world)
        step_s = time.perf_counter() - begin
        record = StepRecord(
            step=number,
            loss=step_loss,
            lr=rate,
            grad_norm=step_norm,
            step_tokens=targets,
            tokens=self.tokens,
            step_s=step_s,
            memory_bytes=peak_memory_bytes(self.world.device),
            extras=extras | self.speed.of(tokens=targets, step_s=step_s),
        )
        return record, reason, is_interrupted

    def _agreed(self, loss: Tensor, norm: Tensor, requested: Callable[[], bool]) -> tuple[float, float, bool]:
        """Loss and norm of the step, and whether any rank was asked to stop: one sum, and one wait for the device."""
        asked = torch.tensor(float(requested()), dtype=torch.float64, device=loss.device)
        summed = self.world.all_sum(torch.stack((loss.double(), asked)))
        if self.world.ways("tp") > 1:
            # Ranks of tp have the same loss, and signals of their own.
            summed[1] = self.world.all_sum(summed[1], "tp")
        found_loss, found_asked, found_norm = torch.stack((*summed, norm.double())).tolist()
        return found_loss, found_norm, found_asked > 0

    def _weight(self, targets: int) -> Tensor:
        return torch.tensor(1.0 / max(targets, 1), dtype=torch.float32, device=self.world.device)

    def _micro_batches(self, objective: Objective, step: int) -> list[Batch]:
        """This copy's rows of a step, in passes."""
        size, rows = self.options.micro_rows, self.options.copy_rows
        begin = self.world.index("dp") * rows
        return [objective.batch(step, range(start, start + size)) for start in range(begin, begin + rows, size)]

    def _now_and_then(self, record: StepRecord) -> None:
        """What is done every so many steps; after the last step it is done once, at the end."""
        options, is_last = self.options, self.step >= self.options.steps
        self._last = record
        self._tell_checkpoints()

        def due(every: int | None) -> bool:
            return every is not None and self.step % every == 0

        if due(options.eval_every) or (is_last and self.evaluation is not None):
            self._eval_loss = record.extras["eval_loss"] = self.evaluate()
        self.watchers.on_step(record.to_json())
        if due(options.sample_every) or is_last:
            self._sample()
        if due(options.checkpoint_interval) and not is_last:
            self._save(wait=False)

    def evaluate(self) -> float | None:
        """The mean loss over ``eval_batches`` batches of held-out data, the same ones each time; None without any."""
        if self.evaluation is None:
            return None
        total, targets = 0.0, 0
        for number in range(1, min(self.options.eval_batches, self.evaluation.batches) + 1):
            count = self.evaluation.targets(number)
            loss = self.prepared.engine.evaluate(self._micro_batches(self.evaluation, number), self._weight(count))
            total, targets = total + self.world.all_sum(loss).item() * count, targets + count
        return total / max(targets, 1)

    def _sample(self) -> None:
        if self.sampler is not None:
            for sample in self.sampler(self.step):
                self.watchers.on_sample(sample)

    def _state(self) -> dict[str, Tensor]:
        return state_of(self.prepared.module, self.optimizer)

    def _save(self, *, wait: bool) -> None:
        if self.checkpoints is None:
            return
        meta: dict[str, Any] = {"step": self.step, "tokens": self.tokens, "usual_losses": self.rule.usual}
        self.checkpoints.save(self.step, self._state(), meta, wait=wait)
        self._tell_checkpoints()

    def _tell_checkpoints(self) -> None:
        """Those that have got to the disk."""
        if self.checkpoints is not None:
            for step in self.checkpoints.newly_finished():
                self.watchers.on_checkpoint(step, self.checkpoints.place(step))

    def _finish(self, ending: Ending, reason: str, records: list[StepRecord]) -> TrainResult:
        """The last checkpoint; a run that was stopped for its numbers keeps the one it has."""
        if ending != "stopped" and records:
            self._save(wait=True)
        if self.checkpoints is not None:
            self.checkpoints.finish()
            self._tell_checkpoints()
        self.watchers.on_stop(reason)
        return TrainResult(
            ending=ending,
            reason=reason,
            step=self.step,
            loss=None if self._last is None else self._last.loss,
            tokens=self.tokens,
            eval_loss=self._eval_loss,
            checkpoint=None if self.checkpoints is None else self.checkpoints.latest(),
            records=records,
        )
