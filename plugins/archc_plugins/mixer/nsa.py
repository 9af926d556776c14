"""Native sparse attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.nsa import HeadGate, NativeSparseAttention

BRANCHES = ("compressed", "selected", "window")


class NSA(Mixer):
    """Native sparse attention, arXiv 2502.11089: o = sum of g_c attention_c(q) over three branches with a gate each.

    compressed: one key and value for every block of keys; selected: the blocks that those score best, in full; window: the
    newest keys. Each branch has keys and values of its own, as the paper has it, and gates are a sigmoid of a linear map of
    the input, one a branch and head. Keys are rotated at their own positions before a block of them is compressed, by an MLP
    over positions inside the block: one linear map alone would add the same to every key, which a softmax does not see.
    """

    refuses_slopes: ClassVar[bool] = True

    num_heads: PositiveInt
    """Query heads."""
    num_kv_heads: PositiveInt
    """Key and value heads; the query heads of one, a group, choose blocks together."""
    head_dim: PositiveInt
    """Channels of a query and key head."""
    v_head_dim: PositiveInt | None = None
    """Channels of a value head. Default: head_dim."""
    compress_block_size: Annotated[int, Field(ge=2)]
    """Keys that become one compressed key."""
    compress_stride: PositiveInt
    """Tokens from one compressed block to the next."""
    compress_intermediate_size: PositiveInt
    """Inner width of the MLP that compresses a block, silu inside; the paper does not say its own."""
    select_block_size: PositiveInt
    """Keys of a block that is chosen or not."""
    num_selected_blocks: PositiveInt
    """Blocks that a token reads in full, initial and local ones among them."""
    num_initial_blocks: NonNegativeInt = 1
    """First blocks of the text that are always among them."""
    num_local_blocks: PositiveInt = 2
    """Newest blocks that are always among them, the token's own first."""
    sliding_window: PositiveInt
    """Keys that the window branch sees: a token sees itself and the W - 1 tokens before it."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_heads % self.num_kv_heads:
            yield "num_kv_heads", f"should divide num_heads, {self.num_heads} (found {self.num_kv_heads})"
        for name, size in (
            ("compress_block_size", self.compress_block_size),
            ("select_block_size", self.select_block_size),
        ):
            if size % self.compress_stride:
                yield name, f"should be a multiple of compress_stride, {self.compress_stride} (found {size})"
        if self.compress_block_size > self.select_block_size:
            longest = (
                f"should be at most select_block_size, {self.select_block_size} (found {self.compress_block_size})"
            )
            yield "compress_block_size", longest
        always = self.num_initial_blocks + self.num_local_blocks
        if self.num_selected_blocks < always:
            yield (
                "num_selected_blocks",
                f"should be at least num_initial_blocks + num_local_blocks, {always} (found {self.num_selected_blocks})",
            )

    def forgetting_objection(self, newest: int, first: int) -> str:
        return "which chooses among the blocks of the whole text"

    def define(self, g: Builder, x: Value) -> Value:
        heads, kv_heads, d, dv = self.num_heads, self.num_kv_heads, self.head_dim, self.v_head_dim or self.head_dim
        q = self.position.rotate(g, g.linear("q_proj", x, heads * d, axis="heads"), head_dim=d)
        keys: dict[str, Value] = {}
        values: dict[str, Value] = {}
        for branch in BRANCHES:
            k = g.linear(f"{branch}_k_proj", x, kv_heads * d, axis="kv_heads")
            keys[branch] = self.position.rotate(g, k, head_dim=d)
            values[branch] = g.linear(f"{branch}_v_proj", x, kv_heads * dv, axis="kv_heads")
        op = NativeSparseAttention(
            num_heads=heads,
            num_kv_heads=kv_heads,
            key_dim=d,
            value_dim=dv,
            scale=d**-0.5,
            compress_block_size=self.compress_block_size,
            compress_stride=self.compress_stride,
            compress_intermediate_size=self.compress_intermediate_size,
            select_block_size=self.select_block_size,
            num_selected_blocks=self.num_selected_blocks,
            num_initial_blocks=self.num_initial_blocks,
            num_local_blocks=self.num_local_blocks,
            cache_dtype=g.cache_dtype,
        )
        given = (keys["compressed"], values["compressed"], keys["selected"], values["selected"])
        compressed, selected = g.emit(op, (q, *given), name="sparse")
        window = g.attention(
            "window",
            q,
            keys["window"],
            values["window"],
            num_heads=heads,
            num_kv_heads=kv_heads,
            scale=d**-0.5,
            window=self.sliding_window,
        )
        gated: list[Value] = []
        for branch, o in zip(BRANCHES, (compressed, selected, window), strict=True):
            gate = g.sigmoid(g.linear(f"{branch}_gate_proj", x, heads, axis="heads"))
            gated.append(g.emit(HeadGate(), (o, gate))[0])
        return g.linear("o_proj", g.add(g.add(gated[0], gated[1]), gated[2]), x.width)
