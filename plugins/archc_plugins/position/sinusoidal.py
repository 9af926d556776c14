"""Sinusoidal positions."""

from __future__ import annotations

from typing import ClassVar

from archc.families import Position
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class Sinusoidal(Position):
    """Sines and cosines of the position, added to the embedding (arXiv 1706.03762); no weights, any position."""

    is_added: ClassVar[bool] = True

    def embed(self, g: Builder, x: Value) -> Value:
        return g.add(x, g.sinusoids(x))
