"""SwiGLU with clamped branches."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from archc.families import FFN
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.elementwise import GatedActivation


class ClampedSwiGLU(FFN):
    """gpt-oss (arXiv 2508.10925): W2 (g sigmoid(alpha g) (u + up_offset)), g = Wg x at most L, u = Wu x within L."""

    intermediate_size: PositiveInt
    """Width between its projections."""
    limit: PositiveFloat
    """The gate is at most this, the other branch within plus and minus this."""
    alpha: PositiveFloat = 1.0
    """Factor inside the sigmoid (gpt-oss: 1.702)."""
    up_offset: float = 0.0
    """Added to the other branch (gpt-oss: 1)."""
    bias: bool = False
    """Whether its projections have biases."""

    def define(self, g: Builder, x: Value) -> Value:
        gating, bias = self.as_expert()
        gate, up = (g.linear(f"{n}_proj", x, self.intermediate_size, bias=bias, axis="ffn") for n in ("gate", "up"))
        return g.linear("down_proj", g.gated_activation(gate, up, gating), x.width, bias=bias)

    def as_expert(self) -> tuple[GatedActivation, bool]:
        return GatedActivation(limit=self.limit, alpha=self.alpha, up_offset=self.up_offset), self.bias
