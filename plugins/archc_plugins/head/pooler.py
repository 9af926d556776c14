"""Hidden states, and one vector a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from archc.families import Head
from archc.graph.vocabulary import Builder
from archc.ir.values import Param, Value
from archc_plugins.head.pooling import pooled


class Pooler(Head):
    """Hidden states, and act(W h + b) of the first token, ``pooler_output`` (batch, hidden_size); BERT, arXiv 1810.04805."""

    output: ClassVar[str] = "hidden_states"
    reads_table: ClassVar[bool] = False

    activation: Literal["tanh", "gelu", "gelu_tanh", "relu", "silu"] = "tanh"
    """What follows the dense layer."""

    def define(self, g: Builder, x: Value, *, table: Param | None, tied: bool) -> Mapping[str, Value]:
        y = g.linear("pooler", pooled(g, x, "cls"), x.width, bias=True)
        return {self.output: x, "pooler_output": g.activation(y, self.activation)}
