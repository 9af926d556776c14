"""DeepSeek-V4's attention: a window of keys, and entries that stand for many tokens each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.block_diagonal import BlockDiagonal
from archc.ops.compressed import CompressedAttention as Attention
from archc.ops.compressed import CompressedEntries
from archc.spec.kind import Section


class EntryIndexer(Section):
    """What chooses the entries that a query reads, by small heads over small entries of its own."""

    num_heads: PositiveInt
    """Heads that score; they share one entry as their key."""
    head_dim: PositiveInt
    """Channels of such a head, and of the index entry that is cached."""
    topk: PositiveInt
    """Entries that a query reads at most."""


class CompressedAttention(Mixer):
    """Attention to a window of keys and compressed entries (DeepSeek-V4, arXiv 2606.19348).

    One head of keys, which are values at once, serves all query heads, whose norm has no weight. Entry w is, a channel at a
    time, norm(sum_j softmax_j(W_g x_j + b_j) (W_c x_j)) over the compress_ratio tokens j of its window: heavily compressed
    attention (HCA) reads all entries, compressed sparse attention (CSA, with overlap and an indexer) the topk of the largest
    sum_h w_h relu(q_h k). The last qk_rope_head_dim channels turn, those of entries by the position of their first token;
    values turn too, so the output is turned back by the position of its query. It is projected in groups. Cache a token:
    (head_dim + indexer.head_dim) / compress_ratio, and sliding_window rows.
    """

    refuses_slopes: ClassVar[bool] = True

    num_heads: PositiveInt
    """Query heads."""
    head_dim: PositiveInt
    """Channels of a head, and of the one that is key and value."""
    q_lora_rank: PositiveInt
    """Rank of the compressed query, which the indexer reads too."""
    o_groups: PositiveInt
    """Groups of heads that the output is projected in."""
    o_lora_rank: PositiveInt
    """Channels that each group becomes, before one projection mixes them."""
    qk_rope_head_dim: PositiveInt
    """Trailing channels of a head that turn."""
    sliding_window: PositiveInt
    """A token sees itself and the W - 1 tokens before it, and beyond them entries."""
    compress_ratio: Annotated[int, Field(ge=2)] | None = None
    """Tokens to an entry. Default: null, the window alone."""
    overlap: bool = False
    """An entry mixes its own window with the one before, each token by rows of its own for either (CSA)."""
    indexer: EntryIndexer | None = None
    """What chooses entries: num_heads, head_dim, topk. Default: null, all are read."""
    sink_logits: bool = True
    """One learned logit a head joins the softmax."""

    def rules(self) -> Iterator[tuple[str, str]]:
        turned = self.qk_rope_head_dim
        if turned > self.head_dim or turned % 2:
            yield "qk_rope_head_dim", f"should be even and at most head_dim, {self.head_dim} (found {turned})"
        if self.num_heads * self.head_dim % self.o_groups:
            yield (
                "o_groups",
                f"should divide num_heads x head_dim, {self.num_heads * self.head_dim} (found {self.o_groups})",
            )
        if self.compress_ratio is None:
            for name in ("overlap", "indexer"):
                if getattr(self, name):
                    yield name, "says something of entries, and there are none; state compress_ratio"
        if self.indexer is not None and self.indexer.head_dim < turned:
            yield (
                "indexer",
                f"needs heads of qk_rope_head_dim, {turned}, channels at least, since as many turn "
                f"(found head_dim {self.indexer.head_dim})",
            )

    def forgetting_objection(self, newest: int, first: int) -> str:
        if self.compress_ratio is None:
            return f"which keeps no more than its own window of {self.sliding_window} tokens"
        return "which keeps entries of the whole text"

    def define(self, g: Builder, x: Value) -> Value:
        heads, d, eps = self.num_heads, self.head_dim, self.norm.epsilon()
        latent = g.rms_norm("q_a_norm", g.linear("q_a_proj", x, self.q_lora_rank), eps=eps)
        q = g.linear("q_b_proj", latent, heads * d, axis="heads")
        q = self._turned(g, g.rms_norm("", q, eps=eps, head_dim=d, weight=False), d)
        kv = self._turned(g, g.rms_norm("kv_norm", g.linear("kv_proj", x, d), eps=eps), d)
        given: list[Value] = []
        if self.compress_ratio is not None:
            given.append(g.scope("compressor", self._compressed, x, dim=d, prefix=""))
        if self.indexer is not None:
            given += g.scope("indexer", self._index, x, latent)
        op = Attention(
            num_heads=heads,
            head_dim=d,
            scale=d**-0.5,
            window=self.sliding_window,
            ratio=self.compress_ratio,
            index_heads=0 if self.indexer is None else self.indexer.num_heads,
            index_dim=0 if self.indexer is None else self.indexer.head_dim,
            topk=None if self.indexer is None else self.indexer.topk,
            sinks=self.sink_logits,
            cache_dtype=g.cache_dtype,
        )
        (o,) = g.emit(op, (q, kv, *given), name="attention")
        o = self._turned_back(g, o)
        (o,) = g.emit(
            BlockDiagonal(width=self.o_groups * self.o_lora_rank, groups=self.o_groups), (o,), name="o_a_proj"
        )
        return g.linear("o_b_proj", o, x.width)

    def _compressed(self, g: Builder, x: Value, *, dim: int, prefix: str) -> Value:
        """Entries of so many channels (batch, entries, dim)."""
        assert self.compress_ratio is not None
        width = dim * (2 if self.overlap else 1)
        rows, gates = (g.linear(f"{name}_proj", x, width) for name in ("kv", "gate"))
        turn = self.position.turn(g, self.qk_rope_head_dim)
        op = CompressedEntries(
            dim=dim,
            ratio=self.compress_ratio,
            overlap=self.overlap,
            eps=self.norm.epsilon(),
            frequencies=() if turn is None else turn.frequencies,
            factor=1.0 if turn is None else turn.factor,
            interleaved=turn is not None and turn.style == "interleaved",
            prefix=prefix,
            chosen=None if self.indexer is None or prefix else self.indexer.topk,
            cache_dtype=g.cache_dtype,
        )
        return g.emit(op, (rows, gates), name="entries")[0]

    def _index(self, g: Builder, x: Value, latent: Value) -> tuple[Value, Value, Value]:
        """Index queries (batch, seq, heads x head_dim), weights (…, heads), and entries (batch, entries, head_dim)."""
        assert self.indexer is not None
        heads, dim = self.indexer.num_heads, self.indexer.head_dim
        q = self._turned(g, g.linear("q_b_proj", latent, heads * dim), dim)
        return q, g.linear("weights_proj", x, heads), self._compressed(g, x, dim=dim, prefix="index_")

    def _turned(self, g: Builder, x: Value, head_dim: int) -> Value:
        turned = self.qk_rope_head_dim
        return self.position.rotate(g, x, head_dim=head_dim, dim=turned, offset=head_dim - turned)

    def _turned_back(self, g: Builder, o: Value) -> Value:
        """Values carry the turn of their own positions; that of the query undoes it but for the distance."""
        turned = self.qk_rope_head_dim
        turn = self.position.turn(g, turned)
        if turn is None:
            return o
        table = g.rope_table(turn.back().frequencies, turn.factor)
        return g.rotary(o, table, head_dim=self.head_dim, dim=turned, offset=self.head_dim - turned, style=turn.style)
