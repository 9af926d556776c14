"""No normalisation."""

from __future__ import annotations

from archc.families import Norm
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class NoNorm(Norm):
    """No normalisation: every norm of a block, of a mixer's queries and keys, and after the last layer is left out."""

    def define(self, g: Builder, name: str, x: Value, *, head_dim: int | None = None) -> Value:
        return x
