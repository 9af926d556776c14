"""Mixture of block attention: every query head reads the blocks whose mean key fits it best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, CAPACITY, TOTAL, Dim, ceil_div, minimum, product
from archc.ir.tape import Held, Tape
from archc.ir.values import MODEL_DTYPE, State, TensorType
from archc.ops.blocks import chosen_pairs_twice, earlier_blocks_twice, is_sliced, whole_blocks
from archc.ops.softmax import attend_new, to_heads


@op
class MixtureOfBlockAttention(Op):
    """Causal attention to chosen blocks of keys (MoBA, arXiv 2502.13189); inputs (q, k, v).

    A head at position t reads its own block of ``block_size`` keys up to itself and, of the blocks before, the ``topk - 1``
    whose mean key has the largest product with its query. The choice has no gradient.

    The cache holds keys, values, and the mean key of every complete block, so that a step reads no key that is not chosen.
    """

    op_name = "mixture_of_block_attention"
    pieces = (("num_heads", "heads"), ("num_kv_heads", "kv_heads"))
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    block_size: int
    topk: int
    cache_dtype: str = MODEL_DTYPE

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        widths = tuple(kind.width for kind in inputs)
        want = (self.num_heads * self.head_dim, *(self.num_kv_heads * self.head_dim,) * 2)
        if widths != want:
            raise GraphError(f"{self.op_name}: q, k, v are {widths} wide, not {want}")
        if self.num_heads % self.num_kv_heads:
            raise GraphError(
                f"{self.op_name}: {self.num_heads} heads are no multiple of {self.num_kv_heads} key-value heads"
            )
        return (inputs[0].with_width(self.num_heads * self.head_dim, "heads"),)

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        def state(name: str, used: Dim, allocated: Dim) -> State:
            return State(
                name,
                (BATCH, self.num_kv_heads, used, self.head_dim),
                (BATCH, self.num_kv_heads, allocated, self.head_dim),
                growth="append",
                role="kv",
                dtype=self.cache_dtype,
                axes=(None, "kv_heads", None, None),
                token_dim=2,
            )

        return {
            "key": state("key", TOTAL, CAPACITY),
            "value": state("value", TOTAL, CAPACITY),
            "block_key": state("block_key", whole_blocks(TOTAL, self.block_size), ceil_div(CAPACITY, self.block_size)),
        }

    def read_elements(self, role: str, state: State) -> Dim:
        """Of keys and values at most the blocks that the query heads of a group choose, no earlier one twice."""
        if role == "block_key":
            return product(state.used)
        blocks = 1 + self.num_heads // self.num_kv_heads * (self.topk - 1)
        return BATCH * minimum(TOTAL, blocks * self.block_size) * (self.num_kv_heads * self.head_dim)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        """A product with each earlier block's mean, and attention; means and the choice are elementwise."""
        gates_twice = earlier_blocks_twice(pairs, self.block_size)
        seen_twice = chosen_pairs_twice(pairs, form, self.block_size, self.topk)
        return BATCH * (gates_twice + seen_twice * 2) * (self.num_heads * self.head_dim)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        """The choice keeps nothing but its mask, of each head."""
        q, k, v = (to_heads(tape, x, self.head_dim) for x in inputs)
        batch, heads, seq, _ = q.shape
        sliced = is_sliced(tape, seq, batch * heads * seq)
        if tape.number(ceil_div(seq, self.block_size)) > self.topk:
            return attend_new(tape, q, k, v, tape.new((batch, heads, seq, seq), "bool"), sliced=sliced)
        return attend_new(tape, q, k, v, tape.new((1, 1, seq, seq), "bool") if sliced else None, sliced=sliced)
