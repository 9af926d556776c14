"""Patches of a picture as tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import PositiveInt

from archc.families import Embedding
from archc.graph.vocabulary import Builder
from archc.ir.size import BATCH, Dim
from archc.ir.values import Param, TensorType, Value
from archc.ops.patches import FirstToken, PatchProjection


class Patch(Embedding):
    """A vector a patch of a square picture, ViT, arXiv 2010.11929: W patch + b, row by row; a learned token first.

    The model reads ``pixel_values`` (batch, num_channels, image_size, image_size) and has (image_size / patch_size)^2 tokens,
    one more with ``cls_token``; a learned position has a row for each.
    """

    source: ClassVar[str] = "pixel_values"
    has_length: ClassVar[bool] = True

    hidden_size: PositiveInt
    """Width of the residual stream."""
    image_size: PositiveInt
    """Pixels a side."""
    patch_size: PositiveInt
    """Pixels a side of one patch."""
    num_channels: PositiveInt = 3
    """Numbers a pixel."""
    cls_token: bool = True
    """Whether a learned token stands before the patches."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.image_size % self.patch_size:
            yield "patch_size", f"should divide image_size, {self.image_size} (found {self.patch_size})"

    def input_type(self, tokens: Dim) -> TensorType:
        return TensorType((BATCH, self.num_channels, self.image_size, self.image_size))

    def num_tokens(self) -> int:
        return (self.image_size // self.patch_size) ** 2 + self.cls_token

    def define(
        self, g: Builder, ids: Value, *, vocab_size: int, table: Param | None = None
    ) -> tuple[Value, Param | None]:
        op = PatchProjection(width=self.hidden_size, patch_size=self.patch_size)
        (x,) = g.emit(op, (ids,), name="patch_proj")
        if self.cls_token:
            (x,) = g.emit(FirstToken(), (x,), name="cls_token")
        return x, None
