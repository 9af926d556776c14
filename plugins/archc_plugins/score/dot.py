"""Scores that are products, under a softmax."""

from __future__ import annotations

from archc.families import Score
from archc.ops.score import ScoreForm


class Dot(Score):
    """<q, k>, a softmax over it (Luong, arXiv 1508.04025)."""

    def form(self, width: int) -> ScoreForm:
        return ScoreForm()


class ScaledDot(Score):
    """<q, k> / sqrt(d), a softmax over it (arXiv 1706.03762): of d channels of variance 1 a product has variance d."""

    def form(self, width: int) -> ScoreForm:
        return ScoreForm(scale=width**-0.5)
