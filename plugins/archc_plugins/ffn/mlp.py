"""Plain feed-forward."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from archc.families import FFN
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.elementwise import Activation


class MLP(FFN):
    """Two matrices around an activation, arXiv 1706.03762: W2 act(W1 x); ``gelu`` is exact, GPT-2's is ``gelu_tanh``."""

    intermediate_size: PositiveInt
    """Width between its projections."""
    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu", "sigmoid", "tanh", "softplus"]
    """What stands between its projections: gelu is exact, relu2 is relu squared."""
    bias: bool = False
    """Whether its projections have biases."""

    def define(self, g: Builder, x: Value) -> Value:
        up = g.linear("up_proj", x, self.intermediate_size, bias=self.bias, axis="ffn")
        return g.linear("down_proj", g.activation(up, self.activation), x.width, bias=self.bias)

    def as_expert(self) -> tuple[Activation, bool]:
        return Activation(function=self.activation), self.bias
