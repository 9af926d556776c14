"""Kernels of a product: weights are f(<q, k>) over the sum of a row's."""

from __future__ import annotations

from archc.families import Score
from archc.ops.score import ScoreForm


class Exp(Score):
    """e^<q, k> over the sum of its row: the kernel that a softmax of products is, and computed as one."""

    def form(self, width: int) -> ScoreForm:
        return ScoreForm()


class Linear(Score):
    """<q, k> over the sum of absolute values of its row, so that products of both signs have a bound."""

    def form(self, width: int) -> ScoreForm:
        return ScoreForm(weighing="sum")


class Relu(Score):
    """max(0, <q, k>) over the sum of its row; a token that nothing speaks to gets zeros."""

    def form(self, width: int) -> ScoreForm:
        return ScoreForm(function="relu", weighing="sum")


class EluPlusOne(Score):
    """elu(<q, k>) + 1 over the sum of its row: positive everywhere, and linear where an exponential explodes."""

    def form(self, width: int) -> ScoreForm:
        return ScoreForm(function="elu_plus_one", weighing="sum")
