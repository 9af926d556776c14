"""SwiGLU."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from archc.families import FFN
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.elementwise import GatedActivation


class SwiGLU(FFN):
    """Gated feed-forward, arXiv 2002.05202: W2 (act(Wg x) Wu x)."""

    intermediate_size: PositiveInt
    """Width between its projections."""
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid"] = "silu"
    """Activation of the gate."""
    bias: bool = False
    """Whether its projections have biases."""

    def define(self, g: Builder, x: Value) -> Value:
        gating, bias = self.as_expert()
        gate, up = (g.linear(f"{n}_proj", x, self.intermediate_size, bias=bias, axis="ffn") for n in ("gate", "up"))
        return g.linear("down_proj", g.gated_activation(gate, up, gating), x.width, bias=bias)

    def as_expert(self) -> tuple[GatedActivation, bool]:
        return GatedActivation(function=self.activation), self.bias
