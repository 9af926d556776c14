"""The post-norm residual layout."""

from __future__ import annotations

from typing import ClassVar

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.spec.values import ONE, Scale
from archc_plugins.block.joining import join


class PostNorm(Block):
    """norm(x + f(x)) for each branch, arXiv 1706.03762; the last norm is the last layer's, so no other follows."""

    takes_cross: ClassVar[bool] = True

    final_norm_default: ClassVar[bool] = False

    residual_multiplier: Scale = ONE
    """Factor on each branch before it is added."""
    skip_multiplier: Scale = ONE
    """Factor on what the branch is added to."""

    def define(
        self,
        g: Builder,
        x: Value,
        *,
        mixer: SubLayer | None,
        cross: SubLayer | None = None,
        ffn: SubLayer | None,
        norm: NormLayer,
    ) -> Value:
        for name, branch in (("mixer", mixer), ("cross", cross), ("ffn", ffn)):
            if branch is not None:
                y = join(g, x, branch(x), skip=self.skip_multiplier, branch=self.residual_multiplier)
                x = norm(f"{name}_norm", y)
        return x
