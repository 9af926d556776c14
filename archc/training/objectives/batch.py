"""What one pass of a model is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
"""The target where nothing is to be learned, as torch's cross-entropy has it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a step.

    Attributes:
        inputs: the model's keyword inputs, (batch, …) each: ``input_ids`` (batch, seq) int64 and whatever else it reads.
        targets: (batch, seq) int64, what each position of the logits should predict; ``IGNORED`` where nothing.
    """

    inputs: Mapping[str, Tensor]
    targets: Tensor

    def __len__(self) -> int:
        """Rows."""
        return self.targets.shape[0]

    def rows(self, start: int, end: int) -> Batch:
        """Those from ``start`` up to ``end``, without a copy."""
        return Batch({name: value[start:end] for name, value in self.inputs.items()}, self.targets[start:end])

    def to(self, device: torch.device | str) -> Batch:
        """The same on a device."""
        return Batch({name: value.to(device) for name, value in self.inputs.items()}, self.targets.to(device))
