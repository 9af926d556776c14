"""Disentangled relative positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import PositiveInt

from archc.errors import GraphError
from archc.families import Position
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.disentangled import DisentangledAttention, RelativeEmbeddings


class Disentangled(Position):
    """Relative positions as vectors that contents meet (DeBERTa, arXiv 2006.03654); one table a stack, projected in each layer.

    Scores are q k + q K + k Q over sqrt(d (1 + terms)), K and Q the position keys and queries of the pair's distance.
    """

    has_slopes: ClassVar[bool] = True
    attends: ClassVar[bool] = True

    max_relative_positions: PositiveInt
    """Distance from which on all share a vector."""
    position_keys: bool = True
    """Whether a query's content meets position keys (c2p)."""
    position_queries: bool = True
    """Whether a key's content meets position queries (p2c)."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if not (self.position_keys or self.position_queries):
            yield "position_keys", "is false as position_queries is, so no position meets anything; take position none"

    def attend(
        self, g: Builder, name: str, q: Value, k: Value, v: Value, *, width: int, num_heads: int, scale: float
    ) -> Value:
        if g.mask != "bidirectional" or k.width != q.width:
            raise GraphError(
                f"{g.path}: disentangled positions need a bidirectional stack and as many key heads as query heads"
            )
        tables: list[Value] = []
        (table,) = g.hoist(
            RelativeEmbeddings(max_distance=self.max_relative_positions, width=width), (), name="rel_embeddings"
        )
        if self.position_keys:
            tables.append(g.linear("pos_proj", table, q.width, axis="heads"))
        if self.position_queries:
            tables.append(g.linear("pos_q_proj", table, q.width, bias=True, axis="heads"))
        op = DisentangledAttention(
            num_heads=num_heads,
            key_dim=q.width // num_heads,
            value_dim=v.width // num_heads,
            scale=scale * (1 + len(tables)) ** -0.5,
            max_distance=self.max_relative_positions,
            has_padding=g.padding is not None,
            has_position_keys=self.position_keys,
            has_position_queries=self.position_queries,
        )
        padding = () if g.padding is None else (g.padding,)
        return g.emit(op, (q, k, v, *padding, *tables), name=name)[0]
