"""Linear attention."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.feature_attention import BidirectionalFeatureAttention, FeatureAttention


class Linear(Mixer):
    """Linear attention, arXiv 2006.16236: ``o_i = sum_j f(q_i).f(k_j) v_j / (sum_j f(q_i).f(k_j) + eps)``, f(x) = elu(x) + 1.

    Scores have no scale. Queries and keys turn with the position, where it turns any, before the feature map. State a layer:
    heads x head_dim x (head_dim + 1), fixed: the sum of k v^T, and beside it the sum of k that normalises; in a
    bidirectional stack both are sums over the whole text, and nothing is kept.
    """

    masks: ClassVar[tuple[str, ...]] = ("causal", "bidirectional")
    keeps_rows: ClassVar[bool] = False
    refuses_slopes: ClassVar[bool] = True

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
        o = by_features(g, q, k, v, num_heads=self.num_heads, eps=self.eps)
        return g.linear("o_proj", o, x.width, bias=self.o_bias)


def by_features(g: Builder, f: Value, h: Value, v: Value, *, num_heads: int, eps: float) -> Value:
    """Attention by features of queries and keys under the open stack's mask, (batch, seq, heads x value_dim)."""
    key_dim, value_dim = f.width // num_heads, v.width // num_heads
    name = "linear_attention"
    if g.mask != "bidirectional":
        op = FeatureAttention(
            num_heads=num_heads, key_dim=key_dim, value_dim=value_dim, eps=eps, state_dtype=g.state_dtype
        )
        return g.emit(op, (f, h, v), name=name)[0]
    padding = () if g.padding is None else (g.padding,)
    two_sided = BidirectionalFeatureAttention(
        num_heads=num_heads, key_dim=key_dim, value_dim=value_dim, eps=eps, has_padding=g.padding is not None
    )
    return g.emit(two_sided, (f, h, v, *padding), name=name)[0]
