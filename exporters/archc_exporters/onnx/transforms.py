"""What happens to a weight between the checkpoint and the file, said so that it can be done in pieces.

Any pure function of whole arrays is a transform; it needs the whole result in memory. These are the forms that large weights
take, and they are made a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from archc_exporters.onnx.arrays import Array, transpose_into

_CHUNK_BYTES = 64 << 20


class Sources(Protocol):
    """The weights that a transform reads, as arrays that may be views of a file."""

    @property
    def arrays(self) -> Sequence[Array]: ...

    def release(self) -> None:
        """What was read so far need not stay in memory; the arrays remain readable."""
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """The first ``count`` rows of the one source, or all."""

    count: int | None = None

    def unit_rows(self, rows: int) -> int:
        """Rows of a result of ``rows`` rows that are made together: bounds of a block are multiples of it."""
        return 1

    def block(self, sources: Sources, start: int, stop: int, rows: int) -> Array:
        """Rows [start, stop) of the ``rows`` of the result."""
        return sources.arrays[0][: self.count][start:stop]


@dataclass(frozen=True, slots=True)
class Transposed:
    """The first ``count`` rows of the one source (or all; dimensions before the last count as one), transposed."""

    count: int | None = None

    def unit_rows(self, rows: int) -> int:
        """As in ``Rows``."""
        return 1

    def block(self, sources: Sources, start: int, stop: int, rows: int) -> Array:
        """As in ``Rows``."""
        source = sources.arrays[0]
        matrix = source.reshape(-1, source.shape[-1])[: self.count]
        out = np.empty((stop - start, matrix.shape[0]), matrix.dtype)
        # A column touches every page of the source; pages are let go on the way, so that few of them are held at a time.
        step = max(1, _CHUNK_BYTES // max(1, matrix.shape[1] * matrix.itemsize))
        for first in range(0, matrix.shape[0], step):
            transpose_into(out[:, first : first + step], matrix[first : first + step, start:stop])
            if step < matrix.shape[0]:
                sources.release()
        return out


@dataclass(frozen=True, slots=True)
class Parts:
    """``function`` of the sources, where each of ``count`` equal parts of the result needs that part of each source only.

    Parts are cut along the first dimension. ``function`` is given one or several parts at a time and returns as many.
    """

    function: Callable[..., Array]
    count: int

    def unit_rows(self, rows: int) -> int:
        """As in ``Rows``."""
        assert rows % self.count == 0, f"{rows} rows are not {self.count} equal parts"
        return rows // self.count

    def block(self, sources: Sources, start: int, stop: int, rows: int) -> Array:
        """As in ``Rows``."""
        unit = self.unit_rows(rows)
        assert start % unit == stop % unit == 0, f"rows {start} to {stop} cut parts of {unit}"
        return self.function(*(self._cut(array, start // unit, stop // unit) for array in sources.arrays))

    def _cut(self, array: Array, first: int, last: int) -> Array:
        each = array.shape[0] // self.count
        assert each * self.count == array.shape[0], f"{array.shape[0]} rows are not {self.count} equal parts"
        return array[first * each : last * each]


Piecewise = Rows | Transposed | Parts
Transform = Callable[..., Array] | Piecewise
