"""Lightning attention."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value

EPS = 1e-6
"""Of the norm of the output, which does not follow the spec's: MiniMax-01 gives it none, and trains with the default."""


def log_decays(num_heads: int, layer: int, num_layers: int) -> tuple[float, ...]:
    """Log decay a token of each head: ALiBi's slopes 2^(-8 (h + 1) / H), less steep in later layers."""
    share = 1 - layer / (num_layers - 1 + 1e-5) + 1e-5
    return tuple(-math.pow(2.0, -8.0 * (head + 1) / num_heads) * share for head in range(num_heads))


class Lightning(Mixer):
    """Lightning attention of MiniMax-01, arXiv 2501.08313 and 2401.04658: linear attention, a fixed decay a head and layer.

    Queries, keys and values pass a SiLU; scores have no scale and no normaliser; the output is normed over all heads together,
    with an eps of 1e-6 whatever the spec's, and gated by a sigmoid. State a layer: heads x head_dim x head_dim, fixed; its
    dtype is the cache policy's `state_dtype`.
    """

    keeps_rows: ClassVar[bool] = False

    num_heads: PositiveInt
    """Heads."""
    head_dim: PositiveInt
    """Channels of a query, key and value head."""

    def define(self, g: Builder, x: Value) -> Value:
        width = self.num_heads * self.head_dim
        q, k, v = (g.activation(g.linear(f"{n}_proj", x, width, axis="heads"), "silu") for n in "qkv")
        decay = g.fixed_decay(x, log_decays(self.num_heads, g.layer_index, g.num_layers))
        o = g.rms_norm("o_norm", g.gated_attention("lightning", q, k, v, decay, head_dim=self.head_dim), eps=EPS)
        gate = g.sigmoid(g.linear("g_proj", x, width, axis="heads"))
        return g.linear("o_proj", g.mul(o, gate), x.width)
