"""Root-mean-square norm."""

from __future__ import annotations

from pydantic import PositiveFloat

from archc.families import Norm
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class RMSNorm(Norm):
    """Root-mean-square norm, arXiv 1910.07467: x / sqrt(mean x^2 + eps) (weight_offset + w)."""

    eps: PositiveFloat
    """Added to the mean square before the root."""
    weight_offset: float = 0.0
    """The weight is offset + w (Gemma, Qwen3-Next: 1)."""

    def epsilon(self) -> float:
        return self.eps

    def define(self, g: Builder, name: str, x: Value, *, head_dim: int | None = None) -> Value:
        return g.rms_norm(name, x, eps=self.eps, weight_offset=self.weight_offset, head_dim=head_dim)
