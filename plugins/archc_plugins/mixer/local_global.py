"""Local windows and global tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from archc.errors import GraphError
from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.block_sparse import BlockSparseAttention
from archc.ops.local_global import FirstTokens, LocalGlobalAttention


class LocalGlobal(Mixer):
    """Windows around each token and a few tokens that see, and are seen by, all (Longformer, arXiv 2004.05150).

    With block_size the same between blocks (BigBird, arXiv 2007.14062): each sees its neighbours, the first and the last, which
    see all, and random ones.
    """

    masks: ClassVar[tuple[str, ...]] = ("bidirectional",)
    refuses_slopes: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = False

    num_heads: PositiveInt
    """Heads."""
    head_dim: PositiveInt
    """Channels of a head."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    o_bias: bool = False
    """Bias on the output projection."""
    attention_window: Annotated[int, Field(ge=2)] | None = None
    """Tokens that a token sees on both sides together, half of them on each; even. Default: **required**, or block_size."""
    block_size: PositiveInt | None = None
    """Tokens of a block, where blocks see blocks: themselves, one neighbour on each side, and the two ends of the text."""
    num_random_blocks: NonNegativeInt = 0
    """Further blocks that a block between the ends sees, drawn for each head."""
    random_seed: NonNegativeInt | None = None
    """What draws the random blocks. Default: none; each is then the first block once more, as published models are run."""
    global_tokens: Literal["first"] | NonNegativeInt = "first"
    """Tokens at the beginning of a text that see, and are seen by, all; first is one. Of blocks it is the first and the last."""
    global_projections: bool = False
    """Whether the global tokens look through queries, keys and values of their own."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if (self.attention_window is None) == (self.block_size is None):
            what = "says what a token sees, and so does block_size" if self.block_size else "is required, or block_size"
            yield "attention_window", f"{what}; state one of them" if self.block_size else what
        if self.attention_window is not None and self.attention_window % 2:
            yield "attention_window", f"should be even, half on each side (found {self.attention_window})"
        if self.global_projections and self.num_global == 0:
            yield "global_projections", "are projections of global tokens, and global_tokens is 0"
        if self.block_size is None:
            for name in ("num_random_blocks", "random_seed"):
                if getattr(self, name):
                    yield name, "draws blocks, and there is no block_size"
        else:
            if self.global_tokens != "first":
                yield "global_tokens", "are the first and the last block where there is a block_size; leave it out"
            if self.global_projections:
                yield "global_projections", "belong to single global tokens, and block_size makes whole blocks global"
            if self.random_seed is not None and not self.num_random_blocks:
                yield "random_seed", "draws num_random_blocks, which is 0"

    @property
    def num_global(self) -> int:
        """Global tokens."""
        return 1 if self.global_tokens == "first" else self.global_tokens

    def define(self, g: Builder, x: Value) -> Value:
        width = self.num_heads * self.head_dim

        def projected(name: str, source: Value) -> Value:
            return g.linear(name, source, width, bias=self.qkv_bias, axis="heads")

        q, k, v = (projected(f"{n}_proj", x) for n in "qkv")
        plain = q
        q, k = (self.position.rotate(g, t, head_dim=self.head_dim) for t in (q, k))
        if self.global_projections and q is not plain:
            raise GraphError(f"{g.path}: {self.position.kind_name} turns no projections of global tokens; take learned")
        padding = () if g.padding is None else (g.padding,)
        if self.block_size is not None:
            return g.linear("o_proj", self._between_blocks(g, q, k, v, padding), x.width, bias=self.o_bias)
        assert self.attention_window is not None, "a valid spec has one"
        further: list[Value] = list(padding)
        if self.global_projections:
            first = FirstTokens(count=self.num_global, has_padding=bool(padding))
            queries = projected("global_q_proj", g.emit(first, (x, *padding), name="first_tokens")[0])
            keys, values = (projected(f"global_{n}_proj", x) for n in "kv")
            further += [queries, keys, values]
        op = LocalGlobalAttention(
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            window=self.attention_window,
            num_global=self.num_global,
            has_global_projections=self.global_projections,
            has_padding=bool(padding),
        )
        o = g.emit(op, (q, k, v, *further), name="attention")[0]
        return g.linear("o_proj", o, x.width, bias=self.o_bias)

    def _between_blocks(self, g: Builder, q: Value, k: Value, v: Value, padding: tuple[Value, ...]) -> Value:
        assert self.block_size is not None
        op = BlockSparseAttention(
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            block_size=self.block_size,
            num_random_blocks=self.num_random_blocks,
            seed=self.random_seed,
            has_padding=bool(padding),
        )
        return g.emit(op, (q, k, v, *padding), name="attention")[0]
