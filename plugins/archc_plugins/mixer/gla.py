"""Gated linear attention."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.linear_attention import LinearAttention


class GLA(Mixer):
    """Gated linear attention, arXiv 2312.06635: ``S = a S + k v^T``, a decay a key channel. State a layer: heads x K x V, fixed.

    The decay ``a = sigmoid(W2 W1 x + b)^(1 / gate_normalizer)`` comes of the token; queries are scaled by 1/sqrt(K). The output
    of a head is normed, with the eps of the spec's norm and a plain weight, and gated by a SiLU.
    """

    keeps_rows: ClassVar[bool] = False

    num_heads: PositiveInt
    """Heads."""
    key_head_dim: PositiveInt
    """Channels of a query and key head: half of a value head's in the paper."""
    value_head_dim: PositiveInt
    """Channels of a value head."""
    gate_rank: PositiveInt = 16
    """Rank of the projection that gives the decays."""
    gate_normalizer: PositiveFloat = 16.0
    """The log of a decay is divided by it: the larger, the longer is what a state remembers."""

    def define(self, g: Builder, x: Value) -> Value:
        heads, key_dim, value_dim = self.num_heads, self.key_head_dim, self.value_head_dim
        q, k = (g.linear(f"{n}_proj", x, heads * key_dim, axis="heads") for n in "qk")
        v, gate = (g.linear(f"{n}_proj", x, heads * value_dim, axis="heads") for n in "vg")
        f = g.linear("f_b_proj", g.linear("f_a_proj", x, self.gate_rank), heads * key_dim, bias=True, axis="heads")
        # log sigmoid(f) = -softplus(-f), in float32: a decay near 1 has its digits behind the first that half precision holds.
        decay = g.scale(g.activation(g.scale(g.cast(f, "float32"), -1.0), "softplus"), -1.0 / self.gate_normalizer)
        op = LinearAttention(
            num_heads=heads,
            num_key_heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            scale=key_dim**-0.5,
            rule="gated",
            state_dtype=g.state_dtype,
        )
        (o,) = g.emit(op, (q, k, v, decay), name="gated_attention")
        o = g.gated_norm("o_norm", o, gate, head_dim=value_dim, eps=self.norm.epsilon(), act="silu")
        return g.linear("o_proj", o, x.width)
