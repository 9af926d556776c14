"""A list of layers written short: runs of equal ones, then runs of equal patterns, as in ``(kda*3 mla)*6 kda*2 mla``."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

Token = TypeVar("Token", bound=Hashable)

LONGEST = 128
"""Items of a pattern that is looked for."""


@dataclass(frozen=True, slots=True)
class Fold(Generic[Token]):
    """``count`` copies of one layer, or of folds in a row; the other of the two is empty."""

    layer: Token | None = None
    row: tuple[Fold[Token], ...] = ()
    count: int = 1

    @property
    def length(self) -> int:
        """Layers of all copies."""
        return self.count * (sum(inner.length for inner in self.row) if self.row else 1)


def fold(layers: Sequence[Token], starts: Container[int] = ()) -> tuple[Fold[Token], ...]:
    """The layers as folds; unfolded in order they are the layers again.

    Where a pattern could as well begin a little later, it begins at one of ``starts``, numbers of layers.
    """
    runs: list[Fold[Token]] = []
    for layer in layers:
        if runs and runs[-1].layer == layer:
            runs[-1] = Fold(layer, count=runs[-1].count + 1)
        else:
            runs.append(Fold(layer))
    return _repeats(runs, starts)


def unfold(folds: Sequence[Fold[Token]]) -> Iterator[Token]:
    """The layers, first to last."""
    for one in folds:
        for _ in range(one.count):
            if one.layer is None:
                yield from unfold(one.row)
            else:
                yield one.layer


def written(folds: Sequence[Fold[str]]) -> str:
    """Folds of names as a spec writes them."""
    return " ".join(_written(one) for one in folds)


def _written(one: Fold[str]) -> str:
    unit = f"({written(one.row)})" if one.layer is None else one.layer
    return unit if one.count == 1 else f"{unit}*{one.count}"


def beginnings(folds: Sequence[Fold[Token]]) -> set[int]:
    """Numbers of the layers with which a copy of a pattern begins."""
    found: set[int] = set()
    at = 0
    for one in folds:
        if one.row:
            found.update(range(at, at + one.length, one.length // one.count))
        at += one.length
    return found


def _repeats(items: Sequence[Fold[Token]], starts: Container[int] = ()) -> tuple[Fold[Token], ...]:
    """From left to right, at each place the pattern whose copies save most."""
    numbers = [0, *accumulate(one.length for one in items)]
    found: list[Fold[Token]] = []
    at = 0
    while at < len(items):
        best_period, best_copies = 1, 1
        for period in range(2, min(LONGEST, (len(items) - at) // 2) + 1):
            copies = _copies(items, at, period)
            if period * (copies - 1) > best_period * (best_copies - 1):
                best_period, best_copies = period, copies
        if best_copies > 1:
            if numbers[at] not in starts:
                later = (place for place in range(at + 1, at + best_period) if numbers[place] in starts)
                place = next((place for place in later if _copies(items, place, best_period) == best_copies), at)
                found += items[at:place]
                at = place
            found.append(Fold(row=_repeats(items[at : at + best_period]), count=best_copies))
        else:
            found.append(items[at])
        at += best_period * best_copies
    return tuple(found)


def _copies(items: Sequence[Fold[Token]], at: int, period: int) -> int:
    """How often the first ``period`` items from ``at`` stand in a row."""
    copies, next_at = 1, at + period
    while next_at + period <= len(items) and all(items[next_at + i] == items[at + i] for i in range(period)):
        copies, next_at = copies + 1, next_at + period
    return copies
