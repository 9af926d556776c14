"""Attention by any score."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import PositiveInt

from archc.errors import GraphError
from archc.families import Mixer, Score
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.spec.slots import Slot


class GeneralAttention(Mixer):
    """Attention whose score is a kind: additive (arXiv 1409.0473), products (1508.04025, 1706.03762), or a kernel of products."""

    masks: ClassVar[tuple[str, ...]] = ("causal", "bidirectional", "prefix")
    can_cross: ClassVar[bool] = True
    refuses_slopes: ClassVar[bool] = True

    num_heads: PositiveInt
    """Heads of queries, keys and values."""
    head_dim: PositiveInt
    """Channels of a head of values, and of queries and keys unless the score says their width."""
    v_head_dim: PositiveInt | None = None
    """Channels of a head of values where they differ. Default: head_dim."""
    score: Annotated[Any, Slot("score")]
    """How queries and keys meet, and what weights come of it."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    o_bias: bool = False
    """Bias on the output projection."""

    def define(self, g: Builder, x: Value) -> Value:
        q, k, v = self._projected(g, x, x)
        width = q.width // self.num_heads
        turned_q = self.position.rotate(g, q, head_dim=width)
        if turned_q is not q and not self._score.is_product:
            raise GraphError(
                f"{g.path}: position {self.position.kind_name} turns queries and keys for their product, and score "
                f"{self._score.kind_name} has none; take another position"
            )
        return self._attend(g, x, turned_q, self.position.rotate(g, k, head_dim=width), v, cross=False)

    def cross(self, g: Builder, x: Value, memory: Value) -> Value:
        return self._attend(g, x, *self._projected(g, x, memory), cross=True)

    @property
    def _score(self) -> Score:
        score: Score = self.score
        return score

    def _projected(self, g: Builder, x: Value, read: Value) -> tuple[Value, Value, Value]:
        heads, width = self.num_heads, self._score.width(self.head_dim)
        q = g.linear("q_proj", x, heads * width, bias=self.qkv_bias, axis="heads")
        k = g.linear("k_proj", read, heads * width, bias=self.qkv_bias, axis="heads")
        v = g.linear("v_proj", read, heads * (self.v_head_dim or self.head_dim), bias=self.qkv_bias, axis="heads")
        return q, k, v

    def _attend(self, g: Builder, x: Value, q: Value, k: Value, v: Value, *, cross: bool) -> Value:
        o = self._score.attend(g, "attention", q, k, v, num_heads=self.num_heads, cross=cross)
        return g.linear("o_proj", o, x.width, bias=self.o_bias)
