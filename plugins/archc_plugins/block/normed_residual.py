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
    ffn_residual_multiplier: Scale | None = None
    """Factor on the feed-forward's branch. Default: residual_multiplier."""
    ffn_skip_multiplier: Scale | None = None
    """Factor on what the feed-forward's branch is added to. Default: skip_multiplier."""

    def define(self, g: Builder, x: Value, *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer) -> Value:
        skip, share = self.skip_multiplier, self.residual_multiplier
        ffn_skip, ffn_share = self.ffn_skip_multiplier or skip, self.ffn_residual_multiplier or share
        for name, branch, kept, added in (("mixer", mixer, skip, share), ("ffn", ffn, ffn_skip, ffn_share)):
            if branch is not None:
                normed = norm(f"{name}_norm", x)
                x = join(g, normed, branch(normed), skip=kept, branch=added)
        return x
