"""Teacher forcing: each token predicts the next one."""

from __future__ import annotations

import numpy as np
import torch

from archc.training.data.arrays import Array
from archc.training.data.order import Order
from archc.training.data.rows import Rows
from archc.training.data.vocabulary import Vocabulary
from archc.training.objectives.batch import IGNORED, Batch
from archc.training.objectives.objective import EMPTY, Objective, check_ids, filled


class Causal(Objective):
    """``input_ids`` (batch, seq) and the ids that follow. Nobody predicts the first token of another document, nor padding.

    ``rows`` overlap by one token, and have ``rows.length`` targets at most.
    """

    def __init__(self, rows: Rows, order: Order, batch_size: int, vocabulary: Vocabulary) -> None:
        super().__init__(order, batch_size)
        assert rows.overlap == 1
        self._rows, self._vocabulary = rows, vocabulary

    def batch(self, step: int, rows: range) -> Batch:
        ids, targets = self._arrays(self._numbers(step, rows))
        return Batch({"input_ids": torch.from_numpy(ids)}, torch.from_numpy(targets))

    def targets(self, step: int) -> int:
        starts, ends = self._rows.spans(self._all_numbers(step))
        first, last = self._rows.boundaries(starts, ends)
        return int((ends - starts - 1).sum() - (last - first).sum())

    def _arrays(self, numbers: Array) -> tuple[Array, Array]:
        """(ids, targets), (rows, seq) int64 each."""
        read = self._rows
        ids = filled(len(numbers), read.length, self._vocabulary.fill_id)
        targets = filled(len(numbers), read.length, IGNORED)
        given = np.flatnonzero(numbers != EMPTY)
        starts, ends = read.spans(numbers[given])
        first, last = read.boundaries(starts, ends)
        for at, row in enumerate(given.tolist()):
            start, end = int(starts[at]), int(ends[at])
            found = read.tokens.read(start, end)
            ids[row, : end - start - 1], targets[row, : end - start - 1] = found[:-1], found[1:]
            targets[row, read.tokens.starts[first[at] : last[at]] - start - 1] = IGNORED
        check_ids(ids, self._vocabulary.num_ids, read.tokens)
        # The last target of a row is no input of it.
        check_ids(targets, self._vocabulary.num_ids, read.tokens)
        return ids, targets
