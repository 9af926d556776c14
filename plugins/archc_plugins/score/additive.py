"""The additive score."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from archc.families import Score
from archc.ops.score import ScoreForm


class Additive(Score):
    """v . tanh(W1 s + W2 h), a softmax over it (Bahdanau, arXiv 1409.0473): queries and keys are projected to one width."""

    is_product: ClassVar[bool] = False

    hidden_size: PositiveInt
    """Width in which a query and a key meet, a head."""

    def width(self, head_dim: int) -> int:
        return self.hidden_size

    def form(self, width: int) -> ScoreForm:
        return ScoreForm(meeting="sum", function="tanh")
