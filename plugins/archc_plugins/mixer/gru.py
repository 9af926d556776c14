"""Gated recurrent units."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from archc.errors import GraphError
from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops import recurrent as ops


class GRU(Mixer):
    """Gated recurrent unit (Cho, arXiv 1406.1078), hidden_size channels wide, or twice that where it goes both ways."""

    masks: ClassVar[tuple[str, ...]] = ("causal", "bidirectional")
    keeps_rows: ClassVar[bool] = False

    hidden_size: PositiveInt
    """Channels of the state."""
    bidirectional: bool = False
    """Whether another one reads from the last token to the first; in a bidirectional stack."""
    bias: bool = False
    """Biases on the gates."""

    def define(self, g: Builder, x: Value) -> Value:
        if self.bidirectional and g.mask != "bidirectional":
            raise GraphError(f"{g.path}: a gru that reads both ways needs a bidirectional stack")
        ahead = self._one_way(g, x, "", is_backward=False)
        return g.concat(ahead, self._one_way(g, x, "reverse_", is_backward=True)) if self.bidirectional else ahead

    def _one_way(self, g: Builder, x: Value, prefix: str, *, is_backward: bool) -> Value:
        gates = g.linear(f"{prefix}input_proj", x, 3 * self.hidden_size, bias=self.bias)
        op = ops.GRU(
            hidden_size=self.hidden_size,
            is_backward=is_backward,
            keeps=g.mask != "bidirectional",
            has_padding=g.padding is not None,
            state_dtype=g.state_dtype,
        )
        return g.emit(op, (gates, *(() if g.padding is None else (g.padding,))), name=f"{prefix}gru")[0]
