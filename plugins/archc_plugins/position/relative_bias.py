"""Relative position biases in buckets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import PositiveInt

from archc.families import Position
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.masked_attention import RelativeBias as Op


class RelativeBias(Position):
    """A learned number a head and bucket of distance, added to scores (T5, arXiv 1910.10683); one table a stack."""

    has_slopes: ClassVar[bool] = True

    num_buckets: PositiveInt
    """Buckets of distance: half of them single distances, the others ever wider."""
    max_distance: PositiveInt
    """Distance from which on all fall into the last bucket."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_buckets % 4:
            yield "num_buckets", f"should be a multiple of 4, two sides of two halves (found {self.num_buckets})"
        if self.max_distance <= self.num_buckets // 2:
            message = f"should be more than the single distances, {self.num_buckets // 2} (found {self.max_distance})"
            yield "max_distance", message

    def scores(self, g: Builder, *, num_heads: int) -> Value:
        op = Op(num_heads=num_heads, num_buckets=self.num_buckets, max_distance=self.max_distance, mask=g.mask)
        further = g.padding if g.mask == "bidirectional" else g.prefix_length if g.mask == "prefix" else None
        inputs = (g.sources["positions"], *(value for value in (further,) if value is not None))
        return g.hoist(op, inputs, name="relative_bias")[0]
