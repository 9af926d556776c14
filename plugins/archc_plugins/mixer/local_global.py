"""Local windows and global tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from archc.errors import GraphError
from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.local_global import FirstTokens, LocalGlobalAttention


class LocalGlobal(Mixer):
    """Windows around each token and a few tokens that see, and are seen by, all (Longformer, arXiv 2004.05150)."""

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
    attention_window: Annotated[int, Field(ge=2)]
    """Tokens that a token sees on both sides together, half of them on each; even."""
    global_tokens: Literal["first"] | NonNegativeInt = "first"
    """Tokens at the beginning of a text that see, and are seen by, all; first is one."""
    global_projections: bool = False
    """Whether the global tokens look through queries, keys and values of their own."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.attention_window % 2:
            yield "attention_window", f"should be even, half on each side (found {self.attention_window})"
        if self.global_projections and self.num_global == 0:
            yield "global_projections", "are projections of global tokens, and global_tokens is 0"

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
