"""Prefix language models: the first part of a row is seen whole, the rest is predicted (arXiv 1910.10683, section 3.2)."""

from __future__ import annotations

import numpy as np
import torch

from archc.training.data.arrays import Array
from archc.training.data.order import Order
from archc.training.data.rows import Rows
from archc.training.data.vocabulary import Vocabulary
from archc.training.objectives.batch import IGNORED, Batch
from archc.training.objectives.causal import Causal


class Prefix(Causal):
    """Teacher forcing behind ``prefix_length`` (batch,) tokens, drawn evenly from those that leave something to predict."""

    def __init__(self, rows: Rows, order: Order, batch_size: int, vocabulary: Vocabulary, *, seed: int) -> None:
        super().__init__(rows, order, batch_size, vocabulary)
        self._seed = seed

    def batch(self, step: int, rows: range) -> Batch:
        ids, targets, lengths = self._cut(step, rows)
        tensors = {"input_ids": torch.from_numpy(ids), "prefix_length": torch.from_numpy(lengths)}
        return Batch(tensors, torch.from_numpy(targets))

    def targets(self, step: int) -> int:
        return int((self._cut(step, range(self.batch_size))[1] != IGNORED).sum())

    def _cut(self, step: int, rows: range) -> tuple[Array, Array, Array]:
        ids, targets = self._arrays(self._numbers(step, rows))
        lengths = np.ones(len(rows), np.int64)
        for at, row in enumerate(rows):
            left = np.flatnonzero(targets[at] != IGNORED)
            if len(left):
                chance = np.random.default_rng([self._seed, step, row])
                lengths[at] = chance.integers(1, left[-1] + 2)
                # The last token of the prefix predicts the first one behind it.
                targets[at, : lengths[at] - 1] = IGNORED
        return ids, targets, lengths
