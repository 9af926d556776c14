"""Labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import PositiveInt

from archc.families import Head
from archc.graph.vocabulary import Builder
from archc.ir.values import Param, Value
from archc_plugins.head.pooling import pooled


class Classifier(Head):
    """One logit a label: W p + b, where p is a token, the mean of all, or each, and may have gone through a layer before."""

    reads_table: ClassVar[bool] = False

    num_labels: PositiveInt
    """Labels; 1 for a score."""
    pool: Literal["cls", "mean", "last", "none"] = "cls"
    """What is classified: the first token, the mean of all, the last token, or each token by itself."""
    activation: Literal["tanh", "gelu", "gelu_tanh", "relu", "silu"] | None = None
    """Before the labels a dense layer and this. Default: none."""
    dense_bias: bool = True
    """Whether that layer has a bias."""
    norm: bool = False
    """Whether a norm follows that layer."""
    bias: bool = True
    """A bias on the logits."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.activation is None:
            for name in ("dense_bias", "norm"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    yield name, "says something of the dense layer, which activation asks for"

    def define(self, g: Builder, x: Value, *, table: Param | None, tied: bool) -> Value:
        y = x if self.pool == "none" else pooled(g, x, self.pool)
        if self.activation is not None:
            y = g.activation(g.linear("head_dense", y, x.width, bias=self.dense_bias), self.activation)
            y = g.norm("head_norm", y) if self.norm else y
        return g.linear("classifier", y, self.num_labels, bias=self.bias)
