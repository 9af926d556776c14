"""SwiGLU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from archc.families import FFN
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.elementwise import GatedActivation


class SwiGLU(FFN):
    """Gated feed-forward, arXiv 2002.05202: W2 (act(Wg x) Wu x)."""

    intermediate_size: PositiveInt
    """Width between its projections."""
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "situ"] = "silu"
    """Activation of the gate; situ caps both branches softly: b tanh(g / b) sigmoid(g) times c tanh(u / c) (Kimi K3)."""
    situ_beta: PositiveFloat = 4.0
    """The b of situ, by default Kimi K3's."""
    situ_linear_beta: NonNegativeFloat = 25.0
    """The c of situ, by default Kimi K3's; 0 leaves that branch as it is."""
    bias: bool = False
    """Whether its projections have biases."""

    def rules(self) -> Iterator[tuple[str, str]]:
        for name in ("situ_beta", "situ_linear_beta"):
            if self.activation != "situ" and getattr(self, name) != type(self).model_fields[name].default:
                yield name, f"is a number of situ, and the activation is {self.activation}"

    def define(self, g: Builder, x: Value) -> Value:
        gating, bias = self.as_expert()
        gate, up = (g.linear(f"{n}_proj", x, self.intermediate_size, bias=bias, axis="ffn") for n in ("gate", "up"))
        return g.linear("down_proj", g.gated_activation(gate, up, gating), x.width, bias=bias)

    def as_expert(self) -> tuple[GatedActivation, bool]:
        if self.activation != "situ":
            return GatedActivation(function=self.activation), self.bias
        gating = GatedActivation(function="situ", beta=self.situ_beta, linear_beta=self.situ_linear_beta or None)
        return gating, self.bias
