"""The pre-norm residual layout."""

from __future__ import annotations

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.spec.values import ONE, Scale


class PreNorm(Block):
    """x + f(norm(x)) for each branch (arXiv 2002.04745)."""

    residual_multiplier: Scale = ONE
    skip_multiplier: Scale = ONE
    mixer_norm: bool = True

    def define(self, g: Builder, x: Value, *, mixer: SubLayer | None, ffn: SubLayer | None, norm: NormLayer) -> Value:
        branch, skip = (
            scale.resolve({"hidden_size": x.width}) for scale in (self.residual_multiplier, self.skip_multiplier)
        )
        if mixer is not None:
            y = mixer(norm("mixer_norm", x) if self.mixer_norm else x)
            x = g.add(g.scale(x, skip), g.scale(y, branch))
        if ffn is not None:
            y = ffn(norm("ffn_norm", x))
            x = g.add(g.scale(x, skip), g.scale(y, branch))
        return x
