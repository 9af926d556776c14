"""Which part of a whole one rank of tensor parallelism has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """Rank ``index`` of as many as ``ways`` says for an axis; an axis that isn't named there stays whole.

    Pieces are as ``torch.chunk`` cuts: equal but for a vocabulary's, of which the last ranks may have less.
    """

    index: int
    ways: Mapping[str, int]

    def count(self, axis: str | None) -> int:
        """Into how many pieces an axis is cut."""
        return 1 if axis is None else self.ways.get(axis, 1)

    def bounds(self, size: int, axis: str | None) -> tuple[int, int]:
        """Where this rank's part of ``size`` begins and ends."""
        most = -(-size // self.count(axis))
        start = self.index * most if self.count(axis) > 1 else 0
        return min(start, size), min(start + most, size)

    def of(self, value: Any, axis: str | None) -> Any:
        """This rank's share of a number of units, or of a tuple with one element a unit; anything else is as it was."""
        if isinstance(value, tuple):
            start, end = self.bounds(len(value), axis)  # pyright: ignore[reportUnknownArgumentType]
            return value[start:end]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, int) and not isinstance(value, bool):
            start, end = self.bounds(value, axis)
            return end - start
        return value
