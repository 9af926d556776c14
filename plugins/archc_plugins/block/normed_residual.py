"""The residual layout whose stream is normed too."""

from __future__ import annotations

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.spec.values import ONE, Scale
from archc_plugins.block.joining import join


class NormedResidual(Block):
    """n + f(n) with n = norm(x) for each branch (MiniMax-01, arXiv 2501.08313)."""

    residual_multiplier: Scale = ONE
    """Factor on each branch before it is added."""
    skip_multiplier: Scale = ONE
    """Factor on what the branch is added to."""

    def define(self, g: Builder, x: Value, *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer) -> Value:
        for name, branch in (("mixer", mixer), ("ffn", ffn)):
            if branch is not None:
                normed = norm(f"{name}_norm", x)
                x = join(g, normed, branch(normed), skip=self.skip_multiplier, branch=self.residual_multiplier)
        return x
