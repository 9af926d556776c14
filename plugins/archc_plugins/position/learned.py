"""Learned positions."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeInt

from archc.families import Position
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class Learned(Position):
    """A learned vector a position, added to the embedding (arXiv 1705.03122); max_position_embeddings of them."""

    is_added: ClassVar[bool] = True
    needs_length: ClassVar[bool] = True

    offset: NonNegativeInt = 0
    """Rows before position 0 (OPT, RoBERTa: 2)."""

    def embed(self, g: Builder, x: Value) -> Value:
        return g.add(x, g.learned_positions("embed_positions", x.width, offset=self.offset))
