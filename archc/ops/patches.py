"""Pictures as tokens: a vector a patch, and a learned token before them (ViT, arXiv 2010.11929)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import Dim, product
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType


@op
class PatchProjection(Op):
    """pixels (batch, channels, height, width) -> (batch, patches, hidden), row by row of patches of ``patch_size`` squared.

    A convolution whose step is its kernel, with a bias: weight (hidden, channels, patch_size, patch_size).
    """

    op_name = "patch_projection"
    width: int
    patch_size: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        pixels = inputs[0]
        height, width = pixels.shape[-2:]
        if len(pixels.shape) != 4 or not isinstance(height, int) or not isinstance(width, int):
            raise GraphError(f"patch_projection: {pixels} are no pixels (batch, channels, height, width)")
        if height % self.patch_size or width % self.patch_size:
            raise GraphError(f"patch_projection: {height} x {width} pixels are no whole patches of {self.patch_size}")
        patches = (height // self.patch_size) * (width // self.patch_size)
        return (TensorType((pixels.shape[0], patches, self.width), pixels.dtype),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        channels = inputs[0].shape[1]
        assert isinstance(channels, int)
        return {
            "weight": Param("weight", (self.width, channels, self.patch_size, self.patch_size)),
            "bias": Param("bias", (self.width,), init="zeros"),
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return product(inputs[0].shape) * (2 * self.width)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        pixels, weight = tape.cast(inputs[0], weights["weight"].dtype), weights["weight"]
        batch, _, height, width = pixels.shape
        patches = tape.number(height) // self.patch_size * (tape.number(width) // self.patch_size)
        return tape.fresh((pixels, weight), (batch, patches, self.width), keeps=(pixels, weight))


@op
class FirstToken(Op):
    """x (batch, tokens, width) -> (batch, tokens + 1, width): a learned vector, the same in every row, before the others."""

    op_name = "first_token"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        batch, tokens, width = inputs[0].shape
        return (TensorType((batch, tokens + 1, width), inputs[0].dtype),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return {"weight": Param("weight", (inputs[0].width,))}

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        batch, tokens, width = inputs[0].shape
        return tape.cat((inputs[0], weights["weight"]), (batch, tokens + 1, width))
