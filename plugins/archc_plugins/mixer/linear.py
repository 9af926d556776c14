"""Linear attention."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.feature_attention import FeatureAttention


class Linear(Mixer):
    """Linear attention, arXiv 2006.16236: ``o_i = sum_j f(q_i).f(k_j) v_j / (sum_j f(q_i).f(k_j) + eps)``, f(x) = elu(x) + 1.

    Scores have no scale. Queries and keys turn with the position, where it turns any, before the feature map. State a layer:
    heads x head_dim x (head_dim + 1), fixed: the sum of k v^T, and beside it the sum of k that normalises.
    """

    keeps_rows: ClassVar[bool] = False

    num_heads: PositiveInt
    """Heads."""
    head_dim: PositiveInt
    """Channels of a query, key and value head."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    o_bias: bool = False
    """Bias on the output projection."""
    eps: PositiveFloat = 1e-6
    """Added to the sum that divides."""

    def define(self, g: Builder, x: Value) -> Value:
        width = self.num_heads * self.head_dim
        q, k, v = (g.linear(f"{n}_proj", x, width, bias=self.qkv_bias, axis="heads") for n in "qkv")
        q, k = (self.position.rotate(g, each, head_dim=self.head_dim) for each in (q, k))
        # In float32: what e^x is far below 0 decides between keys, and half precision would round it away.
        q, k = (g.activation(g.cast(each, "float32"), "elu_plus_one") for each in (q, k))
        op = FeatureAttention(
            num_heads=self.num_heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            eps=self.eps,
            state_dtype=g.state_dtype,
        )
        (o,) = g.emit(op, (q, k, v), name="linear_attention")
        return g.linear("o_proj", o, x.width, bias=self.o_bias)
