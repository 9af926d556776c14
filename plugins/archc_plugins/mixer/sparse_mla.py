"""Multi-head latent attention over the keys that an indexer chooses."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveInt

from archc.families import Position
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.sparse_latent import SparseLatentAttention
from archc.spec.kind import Section
from archc_plugins.mixer.mla import INNER_EPS, MLA


class Indexer(Section):
    """What chooses the keys that a query reads, by small heads of its own that share one key."""

    num_heads: PositiveInt
    """Heads that score."""
    head_dim: PositiveInt
    """Channels of such a head, and of the index key that is cached."""
    topk: PositiveInt
    """Keys that a query reads at most, itself included."""


class SparseMLA(MLA):
    """Latent attention over chosen keys (DeepSeek-V3.2, arXiv 2512.02556). Cache a token: that of mla + indexer.head_dim.

    A token s reads the ``topk`` keys t <= s of the largest ``sum_h w_sh relu(q_sh . k_t)``. The index queries q come from the
    compressed query, the index key k, layer-normed, and the weights w, one a head, from the layer's input; of queries and
    key the leading qk_rope_head_dim channels turn, in halves. The indexer gets no gradient from the output: the paper
    trains it by a loss of its own.
    """

    q_lora_rank: PositiveInt  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    """Rank of the compressed query, which the indexer reads too."""
    indexer: Indexer
    """What chooses the keys: num_heads, head_dim, topk."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        if self.indexer.head_dim < self.qk_rope_head_dim:
            yield (
                "indexer",
                f"needs heads of qk_rope_head_dim, {self.qk_rope_head_dim}, channels at least, since as many turn "
                f"(found head_dim {self.indexer.head_dim})",
            )

    def forgetting_objection(self, newest: int, first: int) -> str:
        return "which chooses among all tokens before its own"

    def attend(
        self, g: Builder, x: Value, q_latent: Value | None, rows: tuple[Value, Value, Value], *, scale: float
    ) -> Value:
        assert q_latent is not None, "q_lora_rank is stated"
        op = SparseLatentAttention(
            num_heads=self.num_heads,
            kv_lora_rank=self.kv_lora_rank,
            nope_dim=self.qk_nope_head_dim,
            rope_dim=self.qk_rope_head_dim,
            value_dim=self.v_head_dim,
            scale=scale,
            index_heads=self.indexer.num_heads,
            index_dim=self.indexer.head_dim,
            topk=self.indexer.topk,
            cache_dtype=g.cache_dtype,
        )
        return g.emit(op, (*rows, *g.scope("indexer", self._index, x, q_latent)), name="attention")[0]

    def _index(self, g: Builder, x: Value, q_latent: Value) -> tuple[Value, Value, Value]:
        """Index queries (batch, seq, heads x head_dim), keys (…, head_dim) and weights (…, heads)."""
        heads, head_dim, position = self.indexer.num_heads, self.indexer.head_dim, _in_halves(self.position)
        q = g.linear("wq_b", q_latent, heads * head_dim)
        key = g.layer_norm("k_norm", g.linear("wk", x, head_dim), eps=INNER_EPS)
        q, key = (position.rotate(g, part, head_dim=head_dim, dim=self.qk_rope_head_dim, offset=0) for part in (q, key))
        return q, key, g.linear("weights_proj", x, heads)


def _in_halves(position: Position) -> Position:
    """The position with leading channels i turning beside i + d/2: the indexer's always do, whatever the attention's."""
    own = {key: False for key in ("interleaved", "trailing") if getattr(position, key, False)}
    return position.model_copy(update=own) if own else position
