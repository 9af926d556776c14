"""Kimi Delta Attention."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class KDA(Mixer):
    """Kimi Delta Attention, arXiv 2510.26692: gated delta rule, a decay a key channel. State a layer: heads x K x V, fixed."""

    keeps_rows: ClassVar[bool] = False

    num_heads: PositiveInt
    """Heads."""
    head_dim: PositiveInt
    """Channels of a query, key and value head."""
    conv_kernel: Annotated[int, Field(ge=2)] = 4
    """Columns of the short convolutions."""
    full_rank_gate: bool = False
    """The output gate is one full matrix instead of two of rank head_dim."""
    decay_floor: Annotated[float, Field(lt=0)] | None = None
    """Lower bound of the log decay. Default: none."""

    def define(self, g: Builder, x: Value) -> Value:
        width, d = self.num_heads * self.head_dim, self.head_dim
        q, k, v = (g.linear(f"{n}_proj", x, width, axis="heads") for n in "qkv")
        q, k, v = g.causal_conv(("q_conv1d", "k_conv1d", "v_conv1d"), (q, k, v), kernel=self.conv_kernel)
        q, k = (g.l2_norm(t, head_dim=d) for t in (q, k))
        f = g.linear("f_b_proj", g.linear("f_a_proj", x, d), width, axis="heads")
        decay = g.log_decay("forget_gate", f, num_heads=self.num_heads, floor=self.decay_floor)
        beta = g.sigmoid(g.linear("b_proj", x, self.num_heads, axis="heads"))
        o = g.linear_attention("delta_rule", q, k, v, decay, beta, head_dim=d)
        if self.full_rank_gate:
            gate = g.linear("g_proj", x, width, axis="heads")
        else:
            gate = g.linear("g_b_proj", g.linear("g_a_proj", x, d), width, axis="heads")
        return g.linear("o_proj", g.gated_norm("o_norm", o, gate, head_dim=d, eps=self.norm.epsilon()), x.width)
