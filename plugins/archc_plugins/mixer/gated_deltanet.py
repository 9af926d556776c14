"""Gated DeltaNet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class GatedDeltaNet(Mixer):
    """Gated DeltaNet, arXiv 2412.06464: delta rule, a decay a head. State a layer: value heads x key_head_dim x value_head_dim.

    Each key head serves the next num_value_heads / num_key_heads value heads. The norm of the output has a plain weight,
    and SiLU on its gate.
    """

    keeps_rows: ClassVar[bool] = False

    num_key_heads: PositiveInt
    """Heads of queries and keys; they divide num_value_heads."""
    num_value_heads: PositiveInt
    """Heads of values, each with its own decay, beta and state."""
    key_head_dim: PositiveInt
    """Channels of a query and key head."""
    value_head_dim: PositiveInt
    """Channels of a value head."""
    conv_kernel: Annotated[int, Field(ge=2)] = 4
    """Columns of the short convolutions."""
    allow_neg_eigval: bool = False
    """Beta lies in (0, 2) instead of (0, 1)."""
    o_norm_eps: PositiveFloat | None = None
    """Eps of the norm of the output (OLMo Hybrid: 1e-5). Default: the norm's."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_value_heads % self.num_key_heads:
            yield "num_key_heads", f"should divide num_value_heads, {self.num_value_heads} (found {self.num_key_heads})"

    def define(self, g: Builder, x: Value) -> Value:
        heads, key_dim, value_dim = self.num_value_heads, self.key_head_dim, self.value_head_dim
        q, k = (g.linear(f"{n}_proj", x, self.num_key_heads * key_dim, axis="heads") for n in "qk")
        v, gate = (g.linear(f"{n}_proj", x, heads * value_dim, axis="heads") for n in "vg")
        q, k, v = g.causal_conv(("q_conv1d", "k_conv1d", "v_conv1d"), (q, k, v), kernel=self.conv_kernel)
        q, k = (g.l2_norm(t, head_dim=key_dim) for t in (q, k))
        decay = g.log_decay("forget_gate", g.linear("a_proj", x, heads, axis="heads"), num_heads=heads)
        beta = g.sigmoid(g.linear("b_proj", x, heads, axis="heads"))
        if self.allow_neg_eigval:
            # I - beta k k^T then has an eigenvalue in (-1, 1) instead of (0, 1).
            beta = g.scale(beta, 2.0)
        o = g.linear_attention("delta_rule", q, k, v, decay, beta, head_dim=key_dim)
        eps = self.norm.epsilon() if self.o_norm_eps is None else self.o_norm_eps
        o = g.gated_norm("o_norm", o, gate, head_dim=value_dim, eps=eps, act="silu")
        return g.linear("o_proj", o, x.width)
