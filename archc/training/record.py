"""What a step of training says, and how a run ends."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from archc.torch_backend.scopes import ScopeModule

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
    extras: dict[str, float | int | None] = field(default_factory=dict[str, float | int | None])

    def to_json(self) -> dict[str, float | int | None]:
        """A line of ``metrics.jsonl``."""
        return {
            "step": self.step,
            "loss": self.loss,
            "lr": self.lr,
            "grad_norm": self.grad_norm,
            "tokens": self.tokens,
            "step_s": self.step_s,
            **self.extras,
            "memory_bytes": self.memory_bytes,
            "time": time.time(),
        }


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended: after ``step`` steps that moved the weights.

    ``checkpoint`` is the last good one, ``folder`` the trained model as ``archc build`` writes one. ``model`` is the
    model itself where one rank holds it whole, and on the first rank of a run without a folder.
    """

    ending: Ending
    reason: str
    step: int
    loss: float | None
    tokens: int
    eval_loss: float | None
    checkpoint: Path | None = None
    folder: Path | None = None
    model: ScopeModule | None = field(default=None, repr=False)
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
            "model": None if self.folder is None else str(self.folder),
        }
