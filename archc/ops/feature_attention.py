"""Attention by feature maps: what two maps of a query and a key multiply to stands for the exponential of their score."""

from __future__ import annotations

from collections.abc import Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, Dim
from archc.ir.values import State, TensorType
from archc.ops.linear_attention import gated_flops


@op
class FeatureAttention(Op):
    """``o_i = sum_j f_i.h_j v_j / (sum_j f_i.h_j + eps)`` over j <= i; inputs (f, h, v), features of queries and keys.

    Both sums are products with one state, (batch, heads, K, V + 1) in float32: ``S = S + h [v, 1]^T``, whose last column sums
    the keys alone (arXiv 2006.16236, equations 16 to 20). Features are positive, so that weights are.
    """

    op_name = "feature_attention"
    num_heads: int
    key_dim: int
    value_dim: int
    eps: float
    state_dtype: str = "float32"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        f, h, v = inputs
        keys = self.num_heads * self.key_dim
        if (f.width, h.width, v.width) != (keys, keys, self.num_heads * self.value_dim):
            raise GraphError(
                f"feature_attention: {f}, {h}, {v} don't fit {self.num_heads} heads of {self.key_dim} features "
                f"and {self.value_dim} values"
            )
        return (v.with_width(v.width, "heads"),)

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        shape = (BATCH, self.num_heads, self.key_dim, self.value_dim + 1)
        axes = (None, "heads", None, None)
        return {
            "recurrent_state": State(
                "recurrent_state", shape, shape, growth="fixed", role="recurrent", dtype=self.state_dtype, axes=axes
            )
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        heads = self.num_heads
        return BATCH * gated_flops(heads, heads, self.key_dim, self.value_dim + 1, form, pairs)
