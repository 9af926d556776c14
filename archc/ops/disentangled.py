"""Disentangled attention (DeBERTa, arXiv 2006.03654): contents meet contents, and contents meet relative positions."""

from __future__ import annotations

from collections.abc import Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, Dim, minimum
from archc.ir.values import Param, TensorType
from archc.ops.masked_attention import check_heads


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


@op
class DisentangledAttention(Op):
    """Softmax attention among all tokens; inputs (q, k, v[, padding][, position keys][, position queries]).

    ``score = scale (q_i k_j + q_i K_d + k_j Q_d)``, d the relative position of i and j: position keys K meet a query's
    content (``has_position_keys``), position queries Q a key's (``has_position_queries``), both
    (1, 2 max_distance, heads x key_dim). ``padding`` (batch, seq), int64, is 1 for tokens and 0 for what nobody sees.
    """

    op_name = "disentangled_attention"
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
