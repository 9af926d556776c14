"""Mixture of block attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.moba import MixtureOfBlockAttention


class MoBA(Mixer):
    """Mixture of block attention, arXiv 2502.13189: each head reads its own block and the earlier ones that it fits best.

    The gate of a block is q . mean(keys of the block); it has no weights.
    """

    refuses_slopes: ClassVar[bool] = True

    num_heads: PositiveInt
    """Query heads; each chooses blocks of its own."""
    num_kv_heads: PositiveInt
    """Key and value heads."""
    head_dim: PositiveInt
    """Channels of a head; never derived."""
    block_size: PositiveInt
    """Keys of a block."""
    topk: PositiveInt
    """Blocks that a head reads, its own among them."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_heads % self.num_kv_heads:
            yield "num_kv_heads", f"should divide num_heads, {self.num_heads} (found {self.num_kv_heads})"

    def forgetting_objection(self, newest: int, first: int) -> str:
        return "which chooses among the blocks of the whole text"

    def define(self, g: Builder, x: Value) -> Value:
        d, kv_width, bias = self.head_dim, self.num_kv_heads * self.head_dim, self.qkv_bias
        q = g.linear("q_proj", x, self.num_heads * d, bias=bias, axis="heads")
        k, v = (g.linear(f"{n}_proj", x, kv_width, bias=bias, axis="kv_heads") for n in "kv")
        q, k = (self.position.rotate(g, t, head_dim=d) for t in (q, k))
        op = MixtureOfBlockAttention(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=d,
            scale=d**-0.5,
            block_size=self.block_size,
            topk=self.topk,
            cache_dtype=g.cache_dtype,
        )
        return g.linear("o_proj", g.emit(op, (q, k, v), name="attention")[0], x.width)
