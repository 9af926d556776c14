"""The largest batch and length that fit, by binary search on a need that never falls."""

from __future__ import annotations

from collections.abc import Callable

NO_LIMIT = 1 << 60
"""Nobody asks for more: a thousand times 1e15 tokens. What still fits here has no limit of its own."""


def largest_that_fits(fits: Callable[[int], bool], *, below: int = NO_LIMIT) -> int | None:
    """The largest number from 1 on that fits, 0 where none does, None where ``below`` fits too.

    ``fits`` must be monotone: what doesn't fit does not fit with more. Integers throughout, so that nothing overflows.
    """
    if not fits(1):
        return 0
    if fits(below):
        return None
    low, high = 1, 2
    while high < below and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
