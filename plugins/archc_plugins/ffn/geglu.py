"""GEGLU."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from archc.families import FFN
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.elementwise import GatedActivation


class GEGLU(FFN):
    """Feed-forward gated by a GELU, arXiv 2002.05202: W2 (gelu(Wg x) Wu x); exact, or Gemma's ``gelu_tanh``."""

    intermediate_size: PositiveInt
    """Width between its projections."""
    activation: Literal["gelu", "gelu_tanh"] = "gelu"
    """Activation of the gate: gelu is exact, Gemma's is gelu_tanh."""
    bias: bool = False
    """Whether its projections have biases."""

    def define(self, g: Builder, x: Value) -> Value:
        gating, bias = self.as_expert()
        gate, up = (g.linear(f"{n}_proj", x, self.intermediate_size, bias=bias, axis="ffn") for n in ("gate", "up"))
        return g.linear("down_proj", g.gated_activation(gate, up, gating), x.width, bias=bias)

    def as_expert(self) -> tuple[GatedActivation, bool]:
        return GatedActivation(function=self.activation), self.bias
