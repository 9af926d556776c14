"""Layer norm."""

from __future__ import annotations

from pydantic import PositiveFloat

from archc.families import Norm
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class LayerNorm(Norm):
    """Layer norm, arXiv 1607.06450: w (x - mean x) / sqrt(var x + eps) + b; Cohere's has no ``bias``."""

    eps: PositiveFloat
    """Added to the variance before the root."""
    bias: bool = True
    """Whether a learned bias is added."""

    def epsilon(self) -> float:
        return self.eps

    def define(self, g: Builder, name: str, x: Value, *, head_dim: int | None = None) -> Value:
        return g.layer_norm(name, x, eps=self.eps, bias=self.bias, head_dim=head_dim)
