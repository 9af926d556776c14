"""Latent attention over the keys that an indexer chooses for each query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, CAPACITY, SEQ, TOTAL, Dim, minimum, product
from archc.ir.tape import Held, Tape
from archc.ir.values import MODEL_DTYPE, Param, State, TensorType
from archc.ops.attention import causal_pairs_twice, expanded


@op
class SparseLatentAttention(Op):
    """DeepSeek sparse attention (arXiv 2512.02556); inputs (q, latent, shared key, index q, index key, index weights).

    A token scores every key it sees, ``sum_h w_h relu(q_h k)`` over ``index_heads`` heads that share one index key, and
    attends to the ``topk`` keys of the largest scores, to all where it sees no more; of equal scores the earlier key wins.
    Positive factors on the scores change no choice and are left out. Scores are float32 and have no gradient: the choice
    is a constant almost everywhere.

    The cache holds a row a token of what latent attention keeps, and one of index keys. ``many`` expands keys and values
    from all rows and masks them, ``few`` reads the chosen rows alone and absorbs ``kv_b_proj`` into query and output.
    """

    op_name = "sparse_latent_attention"
    pieces = (("num_heads", "heads"),)
    num_heads: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    index_heads: int
    index_dim: int
    topk: int
    cache_dtype: str = MODEL_DTYPE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        want = (
            self.num_heads * (self.nope_dim + self.rope_dim),
            self.kv_lora_rank,
            self.rope_dim,
            self.index_heads * self.index_dim,
            self.index_dim,
            self.index_heads,
        )
        widths = tuple(kind.width for kind in inputs)
        if widths != want:
            raise GraphError(
                f"sparse_latent_attention: q, latent, key, index q, index key, index weights are {widths} wide, not {want}"
            )
        return (inputs[0].with_width(self.num_heads * self.value_dim, "heads"),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        rows = self.num_heads * (self.nope_dim + self.value_dim)
        return {"kv_b_proj": Param("kv_b_proj.weight", (rows, self.kv_lora_rank), axes=("heads", None))}

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        def rows(name: str, width: int) -> State:
            used, held = (BATCH, 1, TOTAL, width), (BATCH, 1, CAPACITY, width)
            return State(name, used, held, growth="append", role="kv", dtype=self.cache_dtype, token_dim=2)

        return {
            "latent": rows("latent", self.kv_lora_rank + self.rope_dim),
            "index_key": rows("index_key", self.index_dim),
        }

    def read_elements(self, role: str, state: State) -> Dim:
        """Every index key, and the rows that are chosen."""
        if role == "index_key":
            return product(state.used)
        return BATCH * minimum(TOTAL, self.topk) * (self.kv_lora_rank + self.rope_dim)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        heads, rank, nope, rope, value = self.num_heads, self.kv_lora_rank, self.nope_dim, self.rope_dim, self.value_dim
        scored = BATCH * causal_pairs_twice(pairs, form) * (self.index_heads * (self.index_dim + 1))
        # A token reads min(topk, what it sees) keys, as many as under a window of topk; a mask spares nothing.
        masked = pairs == "dense" and form == "many"
        read = BATCH * causal_pairs_twice(pairs, form, window=None if masked else self.topk)
        if form == "many":
            return scored + BATCH * TOTAL * (2 * rank * heads * (nope + value)) + read * (heads * (nope + rope + value))
        return scored + BATCH * SEQ * (2 * heads * rank * (nope + value)) + read * (heads * (2 * rank + rope))

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        """The choice keeps nothing but its mask, which is a layer's own."""
        q, latent, shared = inputs[:3]
        batch, seq = q.shape[:2]
        rows = tape.cat((latent, shared), (batch, seq, latent.width + shared.width))
        latent, shared = (tape.view(rows, x.shape) for x in (latent, shared))
        mask = tape.new((batch, 1, seq, seq), "bool") if tape.number(seq) > self.topk else None
        nope, value = self.nope_dim, self.value_dim
        return expanded(tape, q, latent, shared, weights["kv_b_proj"], nope_dim=nope, value_dim=value, mask=mask)
