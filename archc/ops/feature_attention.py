"""Attention by feature maps: what two maps of a query and a key multiply to stands for the exponential of their score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, Dim
from archc.ir.tape import Held, Tape
from archc.ir.values import State, TensorType
from archc.ops.linear_attention import gated_flops
from archc.ops.linear_rules import gated
from archc.ops.softmax import for_products, joined_heads, to_heads


@op
class FeatureAttention(Op):
    """``o_i = sum_j f_i.h_j v_j / (sum_j f_i.h_j + eps)`` over j <= i; inputs (f, h, v), features of queries and keys.

    Both sums are products with one state, (batch, heads, K, V + 1) in float32: ``S = S + h [v, 1]^T``, whose last column sums
    the keys alone (arXiv 2006.16236, equations 16 to 20). Features are positive, so that weights are.
    """

    op_name = "feature_attention"
    pieces = (("num_heads", "heads"),)
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

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        f, h, v = (tape.wide(x) for x in inputs)
        leading = (*v.shape[:2], self.num_heads)
        f, h = (tape.view(x, (*leading, self.key_dim)) for x in (f, h))
        v = tape.copy(v, (*leading, self.value_dim + 1))
        sums = gated(tape, f, h, v, tape.view(tape.new((1,), v.dtype), leading))
        return tape.cast(tape.view(_quotient(tape, sums), inputs[2].shape), inputs[2].dtype)


@op
class BidirectionalFeatureAttention(Op):
    """``feature_attention`` among all tokens of a call; inputs (f, h, v[, padding]), no cache.

    One product sums ``h [v, 1]^T`` over the tokens, another reads it with each query's features. ``padding`` (batch, seq),
    int64, is 1 for tokens and 0 for what nobody sees.
    """

    op_name = "bidirectional_feature_attention"
    pieces = (("num_heads", "heads"),)
    num_heads: int
    key_dim: int
    value_dim: int
    eps: float
    has_padding: bool = True

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (_sums(self.op_name, inputs, self.num_heads, self.key_dim, self.value_dim),)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return BATCH * inputs[0].shape[1] * (4 * self.num_heads * self.key_dim * (self.value_dim + 1))

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        f, h = (for_products(tape, to_heads(tape, tape.wide(x), self.key_dim)) for x in inputs[:2])
        v = to_heads(tape, tape.wide(inputs[2]), self.value_dim)
        batch, heads = v.shape[:2]
        v = tape.copy(v, (*v.shape[:3], self.value_dim + 1))
        sums = tape.matmul(h, v, (batch, heads, self.key_dim, self.value_dim + 1))
        o = _quotient(tape, tape.matmul(f, sums, v.shape))
        return tape.cast(joined_heads(tape, o), inputs[2].dtype)


def _quotient(tape: Tape, sums: Held) -> Held:
    """Sums of values by their last column, the sum of weights, on a tape."""
    *leading, width = sums.shape
    divisor = tape.fresh((sums,), (*leading, 1))
    return tape.div(tape.view(sums, (*leading, width - 1)), divisor)


def _sums(name: str, inputs: Sequence[TensorType], heads: int, features: int, values: int) -> TensorType:
    f, h, v = inputs[:3]
    if (f.width, h.width, v.width) != (heads * features, heads * features, heads * values):
        raise GraphError(f"{name}: {f}, {h}, {v} don't fit {heads} heads of {features} features and {values} values")
    return v.with_width(v.width, "heads")
