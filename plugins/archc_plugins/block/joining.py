"""How a branch joins the residual stream: the keys that all layouts share, applied in one place."""

from __future__ import annotations

from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.spec.values import Scale


def join(g: Builder, x: Value, y: Value, *, skip: Scale, branch: Scale) -> Value:
    """``skip x + branch y``: the stream and what a branch adds to it, each times its multiplier."""
    names = {"hidden_size": x.width}
    return g.add(g.scale(x, skip.resolve(names)), g.scale(y, branch.resolve(names)))
