"""Rotary position embedding (arXiv 2104.09864): a table hoisted to the root, and the rotation that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from archc.errors import GraphError
from archc.ir.op import Op, op
from archc.ir.tape import Held, Tape
from archc.ir.values import TensorType


class Turn(NamedTuple):
    """How channels turn: the frequencies of their pairs, a factor on cos and sin, and which channels are a pair."""

    frequencies: tuple[float, ...]
    factor: float
    style: str

    def back(self) -> Turn:
        """The same the other way round."""
        return self._replace(frequencies=tuple(-frequency for frequency in self.frequencies))


@op
class RopeTable(Op):
    """positions (batch, seq) -> cos, sin (batch, seq, dim / 2) in float32.

    The frequencies are numbers on the op, never a buffer; ``factor`` multiplies cos and sin (YaRN's attention factor).
    """

    op_name = "rope_table"
    frequencies: tuple[float, ...]
    factor: float = 1.0

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        kind = TensorType((*inputs[0].shape, len(self.frequencies)), "float32")
        return (kind, kind)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> tuple[Held, ...]:
        shape = (*inputs[0].shape, len(self.frequencies))
        return tape.new(shape, "float32"), tape.new(shape, "float32")


@op
class Rotary(Op):
    """Turns ``dim`` channels from ``offset`` in each head; inputs (x, cos, sin).

    ``half`` pairs channel i with i + dim/2, ``interleaved`` 2i with 2i + 1, both in place.
    """

    op_name = "rotary"
    pieces = ()
    head_dim: int
    dim: int
    offset: int = 0
    style: str = "half"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, cos, _ = inputs
        if self.dim < 1:
            raise GraphError(f"rotary: {self} turns nothing; partial_rotary_factor is too small for the head")
        if x.width % self.head_dim or self.offset + self.dim > self.head_dim or 2 * cos.width != self.dim:
            raise GraphError(f"rotary: {self} doesn't fit {x} and a table of {cos.width} frequencies")
        return (x,)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x = inputs[0]
        cos, sin = (tape.cast(table, x.dtype) for table in inputs[1:])
        half = tape.view(x, (*x.shape[:-1], x.width // self.head_dim * self.dim // 2))
        turned = [tape.add(tape.mul(half, cos), tape.mul(half, sin)) for _ in range(2)]
        return tape.cat(turned, x.shape)


@op
class QueryTemperature(Op):
    """``x (1 + scale ln(1 + floor((position + 1) / floor)))``; inputs (x, positions). Llama 4's long-context queries."""

    op_name = "query_temperature"
    pieces = ()
    scale: float
    floor: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x, positions = inputs
        return tape.mul(x, tape.new((*positions.shape, 1), x.dtype))
