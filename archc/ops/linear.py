"""Matrix products with owned weights: ``linear`` and ``embedding``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from archc.ir.op import Form, Op, Pairs, op
from archc.ir.piece import Piece
from archc.ir.size import Dim, product
from archc.ir.tape import Held, Tape
from archc.ir.values import MODEL_DTYPE, Param, TensorType


@op
class Linear(Op):
    """``x W^T + b``; weight (width, x.width). The output carries ``axis``, the input's axis makes the layer row-parallel."""

    op_name = "linear"
    width: int
    bias: bool = False
    axis: str | None = None
    dtype: str = MODEL_DTYPE
    tied: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0].with_width(self.width, self.axis),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        params: dict[str, Param] = {}
        if not self.tied:
            params["weight"] = Param(
                "weight", (self.width, inputs[0].width), axes=(self.axis, inputs[0].axis), dtype=self.dtype
            )
        if self.bias:
            params["bias"] = Param("bias", (self.width,), axes=(self.axis,), init="zeros", dtype=self.dtype)
        return params

    def cut(self, piece: Piece, inputs: Sequence[TensorType]) -> Op:
        return replace(self, width=piece.of(self.width, self.axis))

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return product(inputs[0].shape) * (2 * self.width)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.linear(inputs[0], weights["weight"], axis=self.axis)


@op
class Embedding(Op):
    """Rows of a table (num_embeddings, width) by id; ``tied``: the table is another op's."""

    op_name = "embedding"
    num_embeddings: int
    width: int
    tied: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType((*inputs[0].shape, self.width)),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        if self.tied:
            return {}
        return {"weight": Param("weight", (self.num_embeddings, self.width), axes=("vocab", None))}

    def cut(self, piece: Piece, inputs: Sequence[TensorType]) -> Op:
        start, end = piece.bounds(self.num_embeddings, "vocab")
        return EmbeddingRows(num_embeddings=end - start, width=self.width, tied=self.tied, first=start)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.take(weights["weight"], inputs[0], (*inputs[0].shape, self.width))


@op
class EmbeddingRows(Embedding):
    """Rows of a table from ``first`` on; ids of other rows give zeros, so that the ranks' outputs add up to the table's."""

    first: int
