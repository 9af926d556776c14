"""Forward and backward of a step on one copy of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from archc.training.module import TrainingModel
from archc.training.objectives.batch import Batch
from archc.training.parallel.fsdp import end_gathered

Cut = Callable[[Batch], tuple[Batch, Any]]
"""What a rank takes of a micro-batch, and the ``Step`` that says where its tokens stand, None where it has all of them."""


class Engine(Protocol):
    """Runs micro-batches. ``weight`` (float32 scalar tensor) is one over the targets of the whole step.

    Both give the weighted sum of this rank's losses, detached, zero on ranks that see no loss; ranks of dp, cp and pp have parts
    of a sum. ``forward_backward`` leaves gradients in the weights.
    """

    def forward_backward(self, micro_batches: Sequence[Batch], weight: Tensor) -> Tensor: ...

    def evaluate(self, micro_batches: Sequence[Batch], weight: Tensor) -> Tensor: ...


class PlainEngine:
    """All layers on every rank."""

    def __init__(self, module: TrainingModel, device: torch.device, cut: Cut | None = None) -> None:
        self.module, self.device, self.cut = module, device, cut

    def forward_backward(self, micro_batches: Sequence[Batch], weight: Tensor) -> Tensor:
        losses: list[Tensor] = []
        for batch in micro_batches:
            loss = self._loss(batch, weight)
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch], weight: Tensor) -> Tensor:
        self.module.eval()
        try:
            return torch.stack([self._loss(batch, weight) for batch in micro_batches]).sum()
        finally:
            end_gathered(self.module)
            self.module.train()

    def _loss(self, batch: Batch, weight: Tensor) -> Tensor:
        step = None
        if self.cut is not None:
            batch, step = self.cut(batch)
        batch = batch.to(self.device)
        inputs: dict[str, Any] = dict(batch.inputs)
        if step is not None:
            inputs["step"] = step
        return self.module(inputs, batch.targets, weight)
