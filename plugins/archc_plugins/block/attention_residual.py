"""Residual connections that attend to earlier blocks of layers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.attention_residual import AttentionResidual


class AttentionResiduals(Block):
    """Attention residuals by blocks (arXiv 2603.15031; Kimi K3): f(norm(m)) of a softmax mixture m of what earlier blocks gave.

    Layers come in blocks of ``block_size``. Within a block what its branches give is summed; a block begins by putting the sum
    so far, of the first one the embedding, with those that later branches attend to, and by starting another. A branch
    reads ``m = sum_i alpha_i v_i`` over those and the running sum, ``alpha = softmax_i(w . rms_norm(v_i))``, where w is
    a vector of its own; one more such mixture stands before the final norm. So a layer of two branches has 4 more vectors,
    and the stack 2.
    """

    keeps_streams: ClassVar[bool] = True

    block_size: PositiveInt
    """Layers to a block whose outputs later layers attend to."""
    eps: PositiveFloat = 1e-5
    """Added to the mean square of what is attended to."""

    def define(self, g: Builder, x: Value, *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer) -> Value:
        raise AssertionError("streams are kept, so layers are placed by layer()")

    def layer(
        self, g: Builder, streams: tuple[Value, ...], *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer
    ) -> tuple[Value, ...]:
        """``streams`` are what closed blocks gave, the embedding first, and the sum of the open one."""
        *closed, total = streams
        begins = g.layer_begins(self.block_size)
        for name, branch in (("mixer", mixer), ("ffn", ffn)):
            if branch is None:
                continue
            read = self._mixture(g, f"{name}_res", (*closed, total))
            y = branch(norm(f"{name}_norm", read))
            if begins:
                closed.append(total)
            total, begins = (y if begins else g.add(total, y)), False
        return (*closed, total)

    def leave(self, g: Builder, streams: tuple[Value, ...]) -> Value:
        return self._mixture(g, "output_res", streams)

    def _mixture(self, g: Builder, name: str, values: tuple[Value, ...]) -> Value:
        return g.emit(AttentionResidual(eps=self.eps), values, name=name)[0]
