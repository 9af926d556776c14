"""The head of the first attending translators."""

from __future__ import annotations

from pydantic import PositiveInt

from archc.errors import GraphError
from archc.families import Head
from archc.graph.vocabulary import Builder
from archc.ir.values import Param, Value
from archc.ops.maxout import Maxout


class MaxoutLM(Head):
    """What comes next through a maxout layer (arXiv 1302.4389), as Bahdanau's output, arXiv 1409.0473: W max(U x)."""

    hidden_size: PositiveInt
    """Channels of the maxout layer."""
    pool_size: PositiveInt = 2
    """Channels of which the largest stays."""
    bias: bool = False
    """Biases on both layers."""

    def define(self, g: Builder, x: Value, *, table: Param | None, tied: bool) -> Value:
        if table is None:
            raise GraphError("maxout_lm predicts tokens, and this embedding has no table of them; take another head")
        wide = g.linear("maxout_proj", x, self.hidden_size * self.pool_size, bias=self.bias)
        (y,) = g.emit(Maxout(pool_size=self.pool_size), (wide,))
        return g.linear("lm_head", y, table.shape[0], bias=self.bias, axis="vocab", weight=table if tied else None)
