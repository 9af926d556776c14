"""Masked language models: some tokens are hidden, and predicted from both sides (BERT, arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from archc.training.data.arrays import Array
from archc.training.data.order import Order
from archc.training.data.rows import Rows
from archc.training.data.vocabulary import Vocabulary
from archc.training.objectives.batch import IGNORED, Batch
from archc.training.objectives.objective import EMPTY, Objective, check_ids, filled

CHOSEN = 0.15
"""Share of the tokens of a row that are predicted; at least one is."""
MASKED, REPLACED = 0.8, 0.1
"""Of these, so many become the mask and so many another token; the others stay as they are."""


class Masked(Objective):
    """``input_ids`` and ``attention_mask`` (batch, seq), 1 for tokens; targets are the chosen tokens as they were.

    Special tokens are never chosen, and never stand in for another. Each step hides other tokens of a row (arXiv 1907.11692).
    """

    def __init__(
        self,
        rows: Rows,
        order: Order,
        batch_size: int,
        vocabulary: Vocabulary,
        *,
        mask_id: int,
        special_ids: Sequence[int],
        seed: int,
    ) -> None:
        super().__init__(order, batch_size)
        assert rows.overlap == 0
        self._rows, self._vocabulary = rows, vocabulary
        self._mask_id, self._seed = mask_id, seed
        self._is_special = np.zeros(vocabulary.num_ids, bool)
        self._is_special[[one for one in (*special_ids, mask_id) if one < vocabulary.num_ids]] = True
        self._ordinary = np.flatnonzero(~self._is_special)

    def batch(self, step: int, rows: range) -> Batch:
        read = self._rows
        ids = filled(len(rows), read.length, self._vocabulary.fill_id)
        targets, mask = filled(len(rows), read.length, IGNORED), filled(len(rows), read.length, 0)
        # A row behind the end sees one token: a softmax over nothing would be no number.
        mask[:, 0] = 1
        for at, (row, found) in enumerate(zip(rows, self._found(self._numbers(step, rows)), strict=True)):
            if found is None:
                continue
            mask[at, : len(found)] = 1
            chosen, hidden = self._hide(found, step, row)
            ids[at, : len(found)] = hidden
            targets[at, chosen] = found[chosen]
        tensors = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        return Batch(tensors, torch.from_numpy(targets))

    def targets(self, step: int) -> int:
        rows = self._found(self._all_numbers(step))
        return sum(_chosen_count(int((~self._is_special[found]).sum())) for found in rows if found is not None)

    def _found(self, numbers: Array) -> list[Array | None]:
        """Ids of rows by number; None for those behind the end."""
        given = numbers != EMPTY
        starts, ends = self._rows.spans(numbers[given])
        found = iter([self._rows.tokens.read(int(start), int(end)) for start, end in zip(starts, ends, strict=True)])
        rows = [next(found) if is_given else None for is_given in given]
        for row in rows:
            if row is not None:
                check_ids(row, self._vocabulary.num_ids, self._rows.tokens)
        return rows

    def _hide(self, found: Array, step: int, row: int) -> tuple[Array, Array]:
        """(which positions of a row are predicted, the row as the model sees it)."""
        chance = np.random.default_rng([self._seed, step, row])
        candidates = np.flatnonzero(~self._is_special[found])
        chosen = chance.choice(candidates, _chosen_count(len(candidates)), replace=False, shuffle=False)
        hidden = found.copy()
        share = chance.random(len(chosen))
        others = self._ordinary[chance.integers(0, len(self._ordinary), len(chosen))]
        hidden[chosen] = np.where(
            share < MASKED, self._mask_id, np.where(share < MASKED + REPLACED, others, found[chosen])
        )
        return chosen, hidden


def _chosen_count(candidates: int) -> int:
    return min(candidates, max(1, round(CHOSEN * candidates)))
