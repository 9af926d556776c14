"""What ranks of tensor parallelism do between ops: add up parts, gather pieces, take one's own (arXiv 1909.08053, section 3).

They stand in the graph of one rank only (``archc.planning.flow``), and come in pairs: what one does forward another does to
gradients backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from archc.ir.op import Op, op
from archc.ir.tape import Held, Tape
from archc.ir.values import TensorType


@op
class EnterPieces(Op):
    """A value that every rank has goes into work on pieces: as it is, and backward adds up the ranks' gradients."""

    op_name = "enter_pieces"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.view(inputs[0], inputs[0].shape)


@op
class SumParts(Op):
    """Parts of a sum, one a rank, are added up, so that every rank has the sum; backward hands the gradient on."""

    op_name = "sum_parts"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.copy(inputs[0])


@op
class ShareGradient(Op):
    """A value that every rank makes whole amid work on pieces: as it is; backward each rank has its share of the gradient."""

    op_name = "share_gradient"
    ways: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.view(inputs[0], inputs[0].shape)


@op
class GatherPieces(Op):
    """All ranks' pieces along ``dim`` side by side; backward each rank takes the gradient of its own."""

    op_name = "gather_pieces"
    dim: int
    ways: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (_resized(inputs[0], self.dim, lambda size: size * self.ways),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.copy(inputs[0], self.infer([TensorType(inputs[0].shape)])[0].shape)


@op
class TakePiece(Op):
    """One rank's piece along ``dim`` of a value that every rank has; backward gathers the gradients of all pieces."""

    op_name = "take_piece"
    dim: int
    ways: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (_resized(inputs[0], self.dim, lambda size: size // self.ways),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.view(inputs[0], self.infer([TensorType(inputs[0].shape)])[0].shape)


def _resized(kind: TensorType, dim: int, size: Callable[[int], int]) -> TensorType:
    """Another size in one dimension, which is a number."""
    old = kind.shape[dim]
    assert isinstance(old, int), f"dimension {dim} of {kind} is symbolic"
    return TensorType((*kind.shape[:dim], size(old), *kind.shape[dim + 1 :]), kind.dtype, kind.axis)
