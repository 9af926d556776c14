"""A decoder that reads an encoder: a source in, its target out."""

from __future__ import annotations

import numpy as np
import torch

from archc.training.data.arrays import Array
from archc.training.data.order import Order
from archc.training.data.rows import PairRows
from archc.training.data.vocabulary import Vocabulary
from archc.training.objectives.batch import IGNORED, Batch
from archc.training.objectives.objective import EMPTY, Objective, check_ids, filled


class Seq2Seq(Objective):
    """``encoder_input_ids``, ``encoder_attention_mask`` (batch, source); ``input_ids`` (batch, seq): the start, then the target.

    Longer sources and targets are cut off: a source keeps its last token where that is a special one, as the end is; a target
    that was cut has no end. Every batch has the same shape, whatever its texts.
    """

    def __init__(
        self,
        rows: PairRows,
        order: Order,
        batch_size: int,
        source: Vocabulary,
        target: Vocabulary,
        *,
        source_len: int,
        seq_len: int,
        start_id: int,
        special_source_ids: frozenset[int],
    ) -> None:
        super().__init__(order, batch_size)
        self._rows, self._source, self._target = rows, source, target
        self._source_len, self._seq_len, self._start_id = source_len, seq_len, start_id
        self._special = special_source_ids

    def batch(self, step: int, rows: range) -> Batch:
        numbers = self._numbers(step, rows)
        sources = filled(len(rows), self._source_len, self._source.fill_id)
        mask = filled(len(rows), self._source_len, 0)
        ids = filled(len(rows), self._seq_len, self._target.fill_id)
        targets = filled(len(rows), self._seq_len, IGNORED)
        # A row behind the end reads one token: a softmax over nothing would be no number.
        mask[:, 0], ids[:, 0] = 1, self._start_id
        for at in np.flatnonzero(numbers != EMPTY):
            source, target = self._rows.pair(int(numbers[at]))
            check_ids(source, self._source.num_ids, self._rows.tokens)
            check_ids(target, self._target.num_ids, self._rows.tokens)
            source, target = self._cut(source), target[: self._seq_len]
            sources[at, : len(source)], mask[at, : len(source)] = source, 1
            ids[at, 1 : len(target)] = target[:-1]
            targets[at, : len(target)] = target
        tensors = {"input_ids": ids, "encoder_input_ids": sources, "encoder_attention_mask": mask}
        return Batch({name: torch.from_numpy(value) for name, value in tensors.items()}, torch.from_numpy(targets))

    def targets(self, step: int) -> int:
        numbers = self._all_numbers(step)
        starts = self._rows.tokens.starts
        return int(np.minimum(starts[2 * numbers + 2] - starts[2 * numbers + 1], self._seq_len).sum())

    def _cut(self, source: Array) -> Array:
        if len(source) <= self._source_len or int(source[-1]) not in self._special:
            return source[: self._source_len]
        return np.concatenate([source[: self._source_len - 1], source[-1:]])
