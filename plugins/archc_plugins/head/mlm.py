"""The head of masked language models."""

from __future__ import annotations

from typing import Literal

from archc.errors import GraphError
from archc.families import Head
from archc.graph.vocabulary import Builder
from archc.ir.values import Param, Value


class MLM(Head):
    """What a masked token was, BERT, arXiv 1810.04805: table norm(act(W x + b)) + c, as wide as the table, which may be tied."""

    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu", "sigmoid", "tanh", "softplus"]
    """What follows the dense layer, before the norm: gelu is exact."""
    dense_bias: bool = True
    """Whether the dense layer has a bias."""
    bias: bool = True
    """A bias on the logits."""

    def define(self, g: Builder, x: Value, *, table: Param | None, tied: bool) -> Value:
        if table is None:
            raise GraphError("mlm predicts tokens, and this embedding has no table of them; take another head")
        rows, width = table.shape
        y = g.linear("head_dense", x, width, bias=self.dense_bias)
        y = g.norm("head_norm", g.activation(y, self.activation))
        return g.linear("lm_head", y, rows, bias=self.bias, axis="vocab", weight=table if tied else None)
