"""Multi-scale retention."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


def log_decays(num_heads: int) -> tuple[float, ...]:
    """Log decay a token of each head: that of 1 - 2^(-5 - h)."""
    return tuple(math.log1p(-(2.0 ** (-5 - head))) for head in range(num_heads))


class RetNet(Mixer):
    """Multi-scale retention, RetNet, arXiv 2307.08621: ``S = g S + k v^T`` with a fixed decay a head, 1 - 2^(-5 - h).

    Queries and keys turn with the position (give the stack a `rope`, for the paper's pairs an interleaved one); keys are scaled
    by 1/sqrt(key_head_dim). Each head of the output is RMS-normed without weights, as the paper's group norm is in its
    published code, which also makes that code's rescaling of scores and states change nothing; then gated by a SiLU. State
    a layer: heads x key_head_dim x value_head_dim, fixed.
    """

    keeps_rows: ClassVar[bool] = False

    num_heads: PositiveInt
    """Heads, each with its own decay."""
    key_head_dim: PositiveInt
    """Channels of a query and key head."""
    value_head_dim: PositiveInt
    """Channels of a value head: twice a key head's in the paper."""

    def define(self, g: Builder, x: Value) -> Value:
        heads, key_dim, value_dim = self.num_heads, self.key_head_dim, self.value_head_dim
        q, k = (g.linear(f"{n}_proj", x, heads * key_dim, axis="heads") for n in "qk")
        v, gate = (g.linear(f"{n}_proj", x, heads * value_dim, axis="heads") for n in "vg")
        q, k = (self.position.rotate(g, each, head_dim=key_dim) for each in (q, k))
        decay = g.fixed_decay(x, log_decays(heads))
        o = g.gated_attention("retention", q, k, v, decay, head_dim=key_dim, scale=key_dim**-0.5)
        o = g.rms_norm("", o, eps=self.norm.epsilon(), head_dim=value_dim, weight=False)
        return g.linear("o_proj", g.mul(o, g.activation(gate, "silu")), x.width)
