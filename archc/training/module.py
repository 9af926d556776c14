"""A model with its loss: what FSDP2 and pipelines wrap, and what a step calls."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from archc.torch_backend.parts import parts_of
from archc.torch_backend.scopes import ScopeModule
from archc.training.loss import Criterion, head_loss


class TrainingModel(nn.Module):
    """``forward(inputs, targets, weight)``: inputs by the model's names, targets (batch, seq) -> ``weight`` x the summed losses.

    The logits are never held whole. ``loss_chunk`` and ``z_loss`` are those of ``TrainOptions``; ``criterion`` replaces the
    loss of a chunk's logits, where those are cut over the vocabulary.
    """

    model: ScopeModule

    def __init__(
        self,
        model: ScopeModule,
        *,
        loss_chunk: int | None = None,
        z_loss: float = 0.0,
        criterion: Criterion | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_chunk, self.z_loss, self.criterion = loss_chunk, z_loss, criterion
        # A tuple, so that the head's modules are registered under the model only.
        self._parts = (parts_of(model),)

    def forward(self, inputs: dict[str, Any], targets: Tensor, weight: Tensor) -> Tensor:
        parts = self._parts[0]
        streams = parts.trunk(**inputs)
        return head_loss(
            parts.tail,
            streams,
            targets,
            weight,
            chunk=self.loss_chunk,
            z_loss=self.z_loss,
            criterion=self.criterion,
        )
