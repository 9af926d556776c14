"""The parallel residual layout."""

from __future__ import annotations

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.spec.values import ONE, Scale
from archc_plugins.block.joining import join


class Parallel(Block):
    """x + mixer(norm(x)) + ffn(norm(x)), arXiv 2204.02311 (PaLM); ``shared_norm``: one norm, the mixer's, feeds both branches."""

    residual_multiplier: Scale = ONE
    """Factor on each branch before it is added."""
    skip_multiplier: Scale = ONE
    """Factor on what the branch is added to."""
    shared_norm: bool
    """Whether one norm feeds both branches."""

    def define(self, g: Builder, x: Value, *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer) -> Value:
        outputs: list[Value] = []
        normed: Value | None = None
        if mixer is not None:
            normed = norm("mixer_norm", x)
            outputs.append(mixer(normed))
        if ffn is not None:
            shared = normed if self.shared_norm else None
            outputs.append(ffn(norm("ffn_norm", x) if shared is None else shared))
        y = outputs[0] if len(outputs) == 1 else g.add(*outputs)
        return join(g, x, y, skip=self.skip_multiplier, branch=self.residual_multiplier)
