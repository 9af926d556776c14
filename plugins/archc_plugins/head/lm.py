"""The language-model head."""

from __future__ import annotations

from pydantic import PositiveFloat

from archc.errors import GraphError
from archc.families import Head
from archc.graph.vocabulary import Builder
from archc.ir.values import Param, Value
from archc.spec.values import ONE, Scale


class LM(Head):
    """One logit a row of the vocabulary table, which may be the embedding's own."""

    bias: bool = False
    """A bias on the logits."""
    logit_scale: Scale = ONE
    """Factor on the logits."""
    final_logit_softcapping: PositiveFloat | None = None
    """Logits z become c tanh(z / c). Default: none."""

    def define(self, g: Builder, x: Value, *, table: Param | None, tied: bool) -> Value:
        hidden_size = x.width
        if table is None:
            raise GraphError("lm predicts tokens, and this embedding has no table of them; take another head")
        rows, width = table.shape
        if tied and width != x.width:
            x = g.linear("head_proj", x, width)
        logits = g.linear("lm_head", x, rows, bias=self.bias, axis="vocab", weight=table if tied else None)
        logits = g.scale(logits, self.logit_scale.resolve({"hidden_size": hidden_size}))
        return logits if self.final_logit_softcapping is None else g.soft_cap(logits, self.final_logit_softcapping)
