"""A linear map in groups: each group of input channels makes outputs of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.piece import Piece
from archc.ir.size import Dim, product
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType


@op
class BlockDiagonal(Op):
    """``W_g x_g`` for each of ``groups`` slices of the last dimension, side by side; weight (width, inputs / groups), no bias.

    The first ``width / groups`` rows belong to the first slice (DeepSeek-V4's grouped output, arXiv 2606.19348). A slice gives
    its own channels only, so what is cut along the input's axis, at whole slices, stays cut.
    """

    op_name = "block_diagonal"
    width: int
    groups: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = inputs[0]
        if x.width % self.groups or self.width % self.groups:
            raise GraphError(f"block_diagonal: {self.groups} groups divide {x.width} or {self.width} channels unevenly")
        return (x.with_width(self.width, x.axis),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        x = inputs[0]
        return {"weight": Param("weight", (self.width, x.width // self.groups), axes=(x.axis, None))}

    def units(self, inputs: Sequence[TensorType]) -> dict[str, int]:
        axis = inputs[0].axis
        return {} if axis is None else {axis: self.groups}

    def cut(self, piece: Piece, inputs: Sequence[TensorType]) -> Op:
        axis = inputs[0].axis
        return replace(self, width=piece.of(self.width, axis), groups=piece.of(self.groups, axis))

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return product(inputs[0].shape) * (2 * self.width // self.groups)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x, weight = inputs[0], weights["weight"]
        shape = (*x.shape[:-1], self.width)
        # The product has the groups first; its copy has them side by side.
        return tape.copy(tape.product(tape.fresh((x, weight), shape, keeps=(x, weight))))
