"""What heads over one vector a text have in common."""

from __future__ import annotations

from archc.errors import GraphError
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.pooling import Pool

TOKENS = {"cls": "first", "mean": "mean", "last": "last"}


def pooled(g: Builder, x: Value, pool: str) -> Value:
    """(batch, seq, width) -> (batch, width): the first token, the mean or the last, padding left out.

    Raises:
        GraphError: the stack's tokens see what came before only, so that none but the last has seen the text.
    """
    if g.mask != "bidirectional" and pool != "last":
        raise GraphError(
            f"a head that pools {pool} wants tokens that see everything, and this stack is {g.mask}; pool last"
        )
    inputs = (x,) if g.padding is None else (x, g.padding)
    (y,) = g.emit(Pool(token=TOKENS[pool], has_padding=g.padding is not None), inputs, name="pool")
    return y
