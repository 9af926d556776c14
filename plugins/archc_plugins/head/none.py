"""No head."""

from __future__ import annotations

from typing import ClassVar

from archc.families import Head
from archc.graph.vocabulary import Builder
from archc.ir.values import Param, Value


class NoHead(Head):
    """The model ends in its hidden states (batch, seq, hidden_size)."""

    output: ClassVar[str] = "hidden_states"
    reads_table: ClassVar[bool] = False

    def define(self, g: Builder, x: Value, *, table: Param | None, tied: bool) -> Value:
        return x
