"""The residual layout with a norm on both sides of a branch."""

from __future__ import annotations

from typing import ClassVar

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.spec.values import ONE, Scale
from archc_plugins.block.joining import join


class Sandwich(Block):
    """x + norm(f(norm(x))) for each branch (CogView, arXiv 2105.13290; Gemma 2, arXiv 2408.00118)."""

    takes_cross: ClassVar[bool] = True

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
                y = norm(f"{name}_output_norm", branch(norm(f"{name}_norm", x)))
                x = join(g, x, y, skip=self.skip_multiplier, branch=self.residual_multiplier)
        return x
