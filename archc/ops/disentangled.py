"""Disentangled attention (DeBERTa, arXiv 2006.03654): contents meet contents, and contents meet relative positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, Dim, minimum
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType
from archc.ops.masked_attention import check_heads
from archc.ops.softmax import joined_heads, to_heads


@op
class RelativeEmbeddings(Op):
    """A learned vector for each of ``2 max_distance`` relative positions, (1, 2 max_distance, width); one table a stack.

    Row ``max_distance + d`` is that of a query d tokens behind a key, distances beyond the ends those of the ends.
    """

    op_name = "relative_embeddings"
    max_distance: int
    width: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType((1, 2 * self.max_distance, self.width)),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return {"weight": Param("weight", (2 * self.max_distance, self.width))}

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.copy(weights["weight"], (1, 2 * self.max_distance, self.width))


@op
class DisentangledAttention(Op):
    """Softmax attention among all tokens; inputs (q, k, v[, padding][, position keys][, position queries]).

    ``score = scale (q_i k_j + q_i K_d + k_j Q_d)``, d the relative position of i and j: position keys K meet a query's
    content (``has_position_keys``), position queries Q a key's (``has_position_queries``), both
    (1, 2 max_distance, heads x key_dim). ``padding`` (batch, seq), int64, is 1 for tokens and 0 for what nobody sees.
    """

    op_name = "disentangled_attention"
    pieces = (("num_heads", "heads"),)
    num_heads: int
    key_dim: int
    value_dim: int
    scale: float
    max_distance: int
    has_padding: bool = True
    has_position_keys: bool = True
    has_position_queries: bool = True

    @property
    def terms(self) -> int:
        """Terms of a score that relative positions bring."""
        return int(self.has_position_keys) + int(self.has_position_queries)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        check_heads(self.op_name, inputs, self.num_heads, self.num_heads, self.key_dim, self.value_dim)
        width = self.num_heads * self.key_dim
        for table in inputs[len(inputs) - self.terms :]:
            if table.shape != (1, 2 * self.max_distance, width):
                raise GraphError(f"{self.op_name}: {table} is no table of 2 x {self.max_distance} positions of {width}")
        return (inputs[0].with_width(self.num_heads * self.value_dim, "heads"),)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        tokens = inputs[1].shape[1]
        # Needed is one product a pair and term; a matrix product meets all positions within reach instead.
        met = tokens if pairs == "needed" else minimum(tokens, self.max_distance) * 2
        heads = BATCH * tokens * (2 * self.num_heads)
        return heads * tokens * (self.key_dim + self.value_dim) + heads * met * (self.key_dim * self.terms)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        """Heads first, so that queries and keys are kept once, beside the tables and one index of all layers."""
        q, k, v = inputs[:3]
        q, k, v = to_heads(tape, q, self.key_dim), to_heads(tape, k, self.key_dim), to_heads(tape, v, self.value_dim)
        batch, heads, seq, width = q.shape
        reach = minimum(seq, self.max_distance)
        index = tape.shared_constant(("relative positions", seq, reach), (seq, seq), "int64")
        shape = (heads, batch, seq, width)
        queries, keys = tape.copy(tape.scaled(q), shape), tape.copy(k, shape)
        scores = tape.matmul(queries, keys, (heads, batch, seq, seq))
        tables = [tape.view(x, (1, heads, reach * 2, width)) for x in inputs[len(inputs) - self.terms :]]
        met = [(queries, tables[0])] if self.has_position_keys else []
        if self.has_position_queries:
            met.append((keys, tape.scaled(tables[-1])))
        for rows, table in met:
            taken = tape.matmul(rows, table, (heads, batch, seq, reach * 2))
            scores = tape.add(scores, tape.take(taken, index, scores.shape))
        weights_of = tape.cast(tape.of_output(tape.cast(scores, "float32")), v.dtype)
        values = tape.view(v, (heads, batch, seq, v.width)) if _lies_so(tape, v) else tape.copy(v)
        o = tape.matmul(weights_of, values, (heads, batch, seq, v.width))
        return joined_heads(tape, tape.view(o, (batch, heads, seq, v.width)))


def _lies_so(tape: Tape, v: Held) -> bool:
    """Whether heads and sequences of (batch, seq, heads x width) become one dimension without a copy."""
    return 1 in (tape.number(v.shape[0]), tape.number(v.shape[1]))
