"""What a step of training says, and how a run ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Ending = Literal["finished", "stopped", "interrupted"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step. ``loss`` is the mean over its targets in nats; ``tokens`` all targets so far; ``extras`` more numbers.

    ``memory_bytes``: the most that was allocated on the first rank's device, on a CPU its resident memory.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    step_tokens: int
    tokens: int
    step_s: float
    memory_bytes: int
    extras: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def tokens_per_s(self) -> float:
        return self.step_tokens / self.step_s if self.step_s else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "loss": self.loss,
            "lr": self.lr,
            "grad_norm": self.grad_norm,
            "step_tokens": self.step_tokens,
            "tokens": self.tokens,
            "step_s": self.step_s,
            "tokens_per_s": self.tokens_per_s,
            "memory_bytes": self.memory_bytes,
            **self.extras,
        }


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What watchers are told when a run begins. ``step_flops``: matrix work of one step on all ranks, by the estimate."""

    name: str
    folder: Path | None
    first_step: int
    steps: int
    parameters: int
    step_tokens: int
    step_flops: int
    ranks: int
    device: str


class Watcher(Protocol):
    """Is told what happens, on the first rank only. What it raises ends the run."""

    def on_start(self, run: RunInfo) -> None: ...

    def on_step(self, record: StepRecord) -> None: ...

    def on_eval(self, step: int, loss: float) -> None: ...

    def on_checkpoint(self, step: int, path: Path) -> None: ...

    def on_sample(self, step: int, text: str) -> None: ...

    def on_stop(self, ending: Ending, reason: str) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended: after ``step`` steps that moved the weights.

    ``checkpoint`` is the last good one, ``model`` the exported folder.
    """

    ending: Ending
    reason: str
    step: int
    loss: float | None
    tokens: int
    eval_loss: float | None
    checkpoint: Path | None
    model: Path | None
    records: list[StepRecord] = field(default_factory=list[StepRecord], repr=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "ending": self.ending,
            "reason": self.reason,
            "step": self.step,
            "loss": self.loss,
            "tokens": self.tokens,
            "eval_loss": self.eval_loss,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "model": None if self.model is None else str(self.model),
        }
