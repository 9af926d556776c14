"""What all objectives have in common: which rows a step has."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from archc.errors import ArchcError
from archc.training.data.arrays import Array
from archc.training.data.order import Order
from archc.training.data.tokens import Tokens
from archc.training.objectives.batch import Batch

EMPTY = -1
"""The number of a row behind the last one, where an order ends."""


class Objective(ABC):
    """Batches by number. Steps count from 1, rows of a step from 0 to ``batch_size`` - 1, whoever asks and for how many."""

    def __init__(self, order: Order, batch_size: int) -> None:
        self.order, self.batch_size = order, batch_size

    @abstractmethod
    def batch(self, step: int, rows: range) -> Batch:
        """Some rows of a step, on the CPU."""

    @abstractmethod
    def targets(self, step: int) -> int:
        """Targets that aren't ``IGNORED`` in all rows of a step."""

    def epoch(self, step: int) -> float:
        """How often all rows were read when a step is done."""
        return step * self.batch_size / len(self.order)

    @property
    def batches(self) -> int:
        """Steps that read all rows once."""
        return -(-len(self.order) // self.batch_size)

    def _numbers(self, step: int, rows: range) -> Array:
        """Numbers of the rows, ``EMPTY`` behind the end of an order that ends."""
        assert step >= 1, step
        assert 0 <= rows.start <= rows.stop <= self.batch_size, rows
        assert rows.step == 1, rows
        first = (step - 1) * self.batch_size
        return self.order.numbers(first + rows.start, first + rows.stop)

    def _all_numbers(self, step: int) -> Array:
        found = self._numbers(step, range(self.batch_size))
        return found[found != EMPTY]


def check_ids(ids: Array, num_ids: int, data: Tokens) -> None:
    """Raises ArchcError where shards hold what their manifest says they don't: a device would only say that an index is wrong."""
    if ids.size and int(ids.max()) >= num_ids:
        raise ArchcError(
            f"{data.folder}: a vocabulary that does not match: the shards hold the id {int(ids.max())}, and the model has "
            f"{num_ids} ids; make them again"
        )


def filled(rows: int, length: int, value: int) -> Array:
    """(rows, length) int64."""
    return np.full((rows, length), value, np.int64)
