"""Attention with linear biases."""

from __future__ import annotations

from typing import ClassVar

from archc.families import Position
from archc.graph.vocabulary import Builder


class Alibi(Position):
    """Attention with linear biases, arXiv 2108.12409: scores fall with the distance, by a slope a head. No weights."""

    has_slopes: ClassVar[bool] = True

    scaled: bool = False
    """Slopes are multiplied by the factor on the scores, too (Falcon)."""

    def bias(self, g: Builder, *, num_heads: int, scale: float) -> tuple[float, ...]:
        return tuple(slope * scale for slope in slopes(num_heads)) if self.scaled else slopes(num_heads)


def slopes(num_heads: int) -> tuple[float, ...]:
    """2^(-8i/n) for n heads; where n is no power of two, every other one of the next power's fills up (BLOOM)."""
    power = 1 << (num_heads.bit_length() - 1)
    return (*_series(power), *_series(2 * power)[::2][: num_heads - power])


def _series(count: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8 * (i + 1) / count) for i in range(count))
