"""In which order rows are read, and which are held out. Everything is a function of the number that is asked for."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from archc.errors import ArchcError
from archc.training.data.arrays import Array

_EPOCHS_KEPT = 2
"""A step may lie in two."""


@dataclass(frozen=True)
class Part:
    """Rows ``total`` of which every so many are ``held`` out: these, or the others. Without any it is all rows."""

    total: int
    held: int = 0
    is_held: bool = False

    def __len__(self) -> int:
        return self.held if self.is_held else self.total - self.held

    def numbers(self, indices: Array) -> Array:
        """Numbers among all rows of rows of this part, int64."""
        if not self.held:
            return indices
        if self.is_held:
            return _held(indices, self.total, self.held)
        # Before the held-out row j there are as many others as its number less j.
        every = np.arange(self.held)
        return indices + np.searchsorted(_held(every, self.total, self.held) - every, indices, side="right")


def _held(indices: Array, total: int, held: int) -> Array:
    """Evenly through all rows, whatever the seed, so that runs can be compared."""
    return (2 * indices + 1) * total // (2 * held)


def split(total: int, fraction: float) -> tuple[Part, Part]:
    """(rows to learn from, rows that are held out), which have none in common; at least one each.

    Raises:
        ArchcError: there are too few rows.
    """
    if not 0 < fraction < 1:
        raise ArchcError(f"the share that is held out should lie between 0 and 1 (found {fraction})")
    if total < 2:
        raise ArchcError(
            f"{total} sequence can't be split into one to learn from and one that is held out; give more data"
        )
    held = min(max(1, round(total * fraction)), total - 1)
    return Part(total, held), Part(total, held, is_held=True)


class Order:
    """The rows of a part, over and over, each time in another order; or once, as they stand, where ``seed`` is None.

    A permutation is kept for each of two epochs, 4 bytes a row: 0.4 GB for 10**8 rows.
    """

    def __init__(self, part: Part, seed: int | None) -> None:
        self.part, self.seed = part, seed
        self._permutations: OrderedDict[int, Array] = OrderedDict()

    def __len__(self) -> int:
        """Rows of an epoch."""
        return len(self.part)

    def numbers(self, first: int, last: int) -> Array:
        """Numbers of the rows that are read as the ``first`` up to the ``last`` of all, int64; -1 behind an end."""
        count = len(self)
        at = np.arange(first, last)
        if self.seed is None:
            inside = at < count
            return np.where(inside, self.part.numbers(np.minimum(at, count - 1)), -1)
        epochs = at // count
        found = np.empty(len(at), np.int64)
        for epoch in range(first // count, (last - 1) // count + 1 if len(at) else 0):
            here = epochs == epoch
            found[here] = self._permutation(epoch)[at[here] - epoch * count]
        return self.part.numbers(found)

    def _permutation(self, epoch: int) -> Array:
        kept = self._permutations
        if epoch not in kept:
            while len(kept) >= _EPOCHS_KEPT:
                kept.popitem(last=False)
            assert self.seed is not None
            drawn = np.arange(len(self), dtype=np.uint32 if len(self) <= 1 << 32 else np.int64)
            np.random.default_rng([self.seed, epoch]).shuffle(drawn)
            kept[epoch] = drawn
        return kept[epoch]
