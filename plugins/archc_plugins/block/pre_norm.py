"""The pre-norm residual layout."""

from __future__ import annotations

from typing import ClassVar

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.spec.values import ONE, Scale
from archc_plugins.block.joining import join


class PreNorm(Block):
    """x + f(norm(x)) for each branch (arXiv 2002.04745)."""

    takes_cross: ClassVar[bool] = True

    residual_multiplier: Scale = ONE
    """Factor on each branch before it is added."""
    skip_multiplier: Scale = ONE
    """Factor on what the branch is added to."""
    mixer_norm: bool = True
    """Whether there is a norm before the mixer."""

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
        skip, branch = self.skip_multiplier, self.residual_multiplier
        if mixer is not None:
            x = join(g, x, mixer(norm("mixer_norm", x) if self.mixer_norm else x), skip=skip, branch=branch)
        for name, other in (("cross", cross), ("ffn", ffn)):
            if other is not None:
                x = join(g, x, other(norm(f"{name}_norm", x)), skip=skip, branch=branch)
        return x
