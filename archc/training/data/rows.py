"""Documents cut into rows. A row is a span of tokens, known by its number."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from archc.errors import ArchcError
from archc.training.data.arrays import Array
from archc.training.data.tokens import Tokens


class Rows(ABC):
    """Spans of at most ``length`` + ``overlap`` tokens, ``overlap`` of which the next row begins with.

    ``overlap`` is 1 where a row predicts the next token, whose last target is what the next row reads first, and 0 where it
    predicts its own.
    """

    def __init__(self, tokens: Tokens, length: int, *, overlap: int) -> None:
        self.tokens, self.length, self.overlap = tokens, length, overlap

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def spans(self, numbers: Array) -> tuple[Array, Array]:
        """(start, end) in the row of all tokens, int64 each, of rows by number."""

    def boundaries(self, starts: Array, ends: Array) -> tuple[Array, Array]:
        """(first, last) in ``tokens.starts`` of the documents that begin inside spans, not at their start."""
        begins = self.tokens.starts
        # The last number is where all documents end, and stands for none.
        last = np.minimum(np.searchsorted(begins, ends, side="left"), len(begins) - 1)
        return np.searchsorted(begins, starts, side="right"), last


class PackedRows(Rows):
    """Documents that follow each other, cut wherever a row is full; the last tokens that fill none are left out."""

    def __len__(self) -> int:
        return max(0, len(self.tokens) - self.overlap) // self.length

    def spans(self, numbers: Array) -> tuple[Array, Array]:
        starts = numbers * self.length
        return starts, starts + self.length + self.overlap


class DocumentRows(Rows):
    """Rows of one document each: long ones are cut, short ones leave a row unfilled. Eight bytes a document are kept."""

    def __init__(self, tokens: Tokens, length: int, *, overlap: int) -> None:
        super().__init__(tokens, length, overlap=overlap)
        sizes = np.maximum(np.diff(tokens.starts) - overlap, 0)
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(-(-sizes // length))])
        """Rows before each document, and all of them."""

    def __len__(self) -> int:
        return int(self._before[-1])

    def spans(self, numbers: Array) -> tuple[Array, Array]:
        document = np.searchsorted(self._before, numbers, side="right") - 1
        starts = self.tokens.starts[document] + (numbers - self._before[document]) * self.length
        return starts, np.minimum(starts + self.length + self.overlap, self.tokens.starts[document + 1])


class PairRows:
    """Documents by twos: a source and its target."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return self.tokens.documents // 2

    def pair(self, number: int) -> tuple[Array, Array]:
        """(ids of the source, ids of the target), int64."""
        first, middle, last = (int(at) for at in self.tokens.starts[2 * number : 2 * number + 3])
        return self.tokens.read(first, middle), self.tokens.read(middle, last)


def cut_rows(tokens: Tokens, length: int, *, overlap: int, packing: str) -> Rows:
    """``packed`` rows or rows of ``documents``.

    Raises:
        ArchcError: there is not one.
    """
    kind = {"packed": PackedRows, "documents": DocumentRows}[packing]
    rows = kind(tokens, length, overlap=overlap)
    if len(rows):
        return rows
    count, needed = len(tokens), length + overlap
    most = count - overlap
    if packing == "documents" or most < 1:
        raise ArchcError(f"{tokens.source}: the data has {count:,} tokens, and no document of two; give more of it")
    raise ArchcError(
        f"{tokens.source}: the data has {count:,} tokens, fewer than the {needed:,} of one sequence: a seq_len of {most:,} "
        f"would do, or packing documents, which fills up short rows, or more data"
    )
