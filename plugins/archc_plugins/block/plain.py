"""The layout without residuals."""

from __future__ import annotations

from typing import ClassVar

from archc.families import Block, NormLayer, SubLayer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class Plain(Block):
    """f(x) for each branch: nothing is added and nothing normed, so that a branch may give another width."""

    final_norm_default: ClassVar[bool] = False
    takes_cross: ClassVar[bool] = True

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
        for branch in (mixer, cross, ffn):
            x = x if branch is None else branch(x)
        return x
