"""Rotary position embedding."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from archc.errors import GraphError
from archc.families import Position
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.rotary import Turn
from archc.spec.slots import Slot

MAX_TURNED = 1 << 16
"""No head is wider, and a frequency is written down for every pair of these channels."""


class Rope(Position):
    """Rotary position embedding, arXiv 2104.09864: channel pairs of queries and keys turn with the position."""

    theta: Annotated[float, Field(gt=1)]
    """Base of the frequencies."""
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the head's channels that turn, leading ones; some mixers say themselves which do."""
    interleaved: bool = False
    """Pairs are (2i, 2i + 1) instead of (i, i + d/2)."""
    trailing: bool = False
    """The last channels turn instead of the first."""
    scaling: Annotated[Any, Slot("scaling")] = None
    """A change of the frequencies for longer contexts. Default: none."""

    def rotate(
        self, g: Builder, x: Value, *, head_dim: int, dim: int | None = None, offset: int | None = None
    ) -> Value:
        if dim is None:
            if self.trailing and self.partial_rotary_factor == 1.0:
                raise GraphError(
                    f"{g.path}: trailing has no effect while partial_rotary_factor is 1: all channels turn"
                )
        elif self.partial_rotary_factor != 1.0:
            raise GraphError(f"{g.path}: this mixer says which channels turn: partial_rotary_factor has no place here")
        elif self.trailing and offset != head_dim - dim:
            raise GraphError(
                f"{g.path}: this mixer turns channels that are not its last ones: trailing has no place here"
            )
        turned = int(head_dim * self.partial_rotary_factor) if dim is None else dim
        if turned > MAX_TURNED:
            raise GraphError(f"{g.path}: rope turns at most {MAX_TURNED:,} channels of a head (found {turned:,})")
        start = (head_dim - turned if self.trailing else 0) if offset is None else offset
        turn = self.turn(g, turned)
        table = g.rope_table(turn.frequencies, turn.factor)
        return g.rotary(x, table, head_dim=head_dim, dim=turned, offset=start, style=turn.style)

    def turn(self, g: Builder, dim: int) -> Turn:
        style = "interleaved" if self.interleaved else "half"
        if self.scaling is None:
            return Turn(base_frequencies(self.theta, dim), 1.0, style)
        frequencies = self.scaling.frequencies(self.theta, dim, length=g.max_position_embeddings)
        return Turn(frequencies, self.scaling.attention_factor(), style)

    def softmax_multiplier(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.softmax_multiplier()


def base_frequencies(theta: float, dim: int) -> tuple[float, ...]:
    """theta^(-2i/dim) for the dim/2 pairs."""
    return tuple(theta ** (-2 * i / dim) for i in range(dim // 2))
