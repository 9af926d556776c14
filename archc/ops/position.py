"""What a position adds to the embedding: a row of a learned table, or sines and cosines (arXiv 1706.03762)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Op, op
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType


@op
class LearnedPositions(Op):
    """positions (batch, seq) -> (batch, seq, width): row ``offset + position`` of a table with ``num_positions`` more rows."""

    op_name = "learned_positions"
    num_positions: int
    width: int
    offset: int = 0

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType((*inputs[0].shape, self.width)),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return {"weight": Param("weight", (self.offset + self.num_positions, self.width))}

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        rows = tape.scaled(inputs[0]) if self.offset else inputs[0]
        return tape.take(weights["weight"], rows, (*rows.shape, self.width))


@op
class Sinusoids(Op):
    """(positions (batch, seq), x) -> like x: sin(p / base^(2i/width)) in channel 2i, the cosine in channel 2i + 1.

    Numbers, never a buffer, of any position; computed in float32 and rounded to x's dtype.
    """

    op_name = "sinusoids"
    base: float = 10000.0

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        positions, x = inputs
        if x.width % 2 or x.shape[:-1] != positions.shape:
            raise GraphError(f"sinusoids: sines and cosines come in pairs, and {x} has {x.width} channels")
        return (x,)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        positions, x = inputs
        return tape.new((*positions.shape, x.width), x.dtype)


@op
class TokenIndex(Op):
    """x (batch, tokens, …) -> 0, 1, 2, … for each token, (batch, tokens) int64: positions of what is no text."""

    op_name = "token_index"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType(inputs[0].shape[:2], "int64"),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.new((1, inputs[0].shape[1]), "int64")


def sinusoid_frequencies(base: float, width: int) -> tuple[float, ...]:
    """base^(-2i/width) for the width/2 pairs."""
    return tuple(base ** (-2 * i / width) for i in range(width // 2))
