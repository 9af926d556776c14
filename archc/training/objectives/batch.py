"""What one pass reads and must predict."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """``inputs`` by the model's names, each (batch, …); ``targets`` (batch, seq) int64, what position s must predict, or -100."""

    inputs: dict[str, Tensor]
    targets: Tensor

    def rows(self, start: int, end: int) -> Batch:
        """Some of its rows."""
        return Batch({name: value[start:end] for name, value in self.inputs.items()}, self.targets[start:end])

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(
            {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()},
            self.targets.to(device, non_blocking=True),
        )
