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
        return (_sums(self.op_name, inputs, self.num_heads, self.key_dim, self.value_dim),)

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


@op
class BidirectionalFeatureAttention(Op):
    """``feature_attention`` among all tokens of a call; inputs (f, h, v[, padding]), no cache.

    One product sums ``h [v, 1]^T`` over the tokens, another reads it with each query's features. ``padding`` (batch, seq),
    int64, is 1 for tokens and 0 for what nobody sees.
    """

    op_name = "bidirectional_feature_attention"
    num_heads: int
    key_dim: int
    value_dim: int
    eps: float
    has_padding: bool = True

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (_sums(self.op_name, inputs, self.num_heads, self.key_dim, self.value_dim),)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return BATCH * inputs[0].shape[1] * (4 * self.num_heads * self.key_dim * (self.value_dim + 1))


def _sums(name: str, inputs: Sequence[TensorType], heads: int, features: int, values: int) -> TensorType:
    f, h, v = inputs[:3]
    if (f.width, h.width, v.width) != (heads * features, heads * features, heads * values):
        raise GraphError(f"{name}: {f}, {h}, {v} don't fit {heads} heads of {features} features and {values} values")
    return v.with_width(v.width, "heads")
