"""When a run should stop by itself: numbers that are none, and losses that jump and stay."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

WINDOW_STEPS = 64
"""Losses whose median is what is usual."""
LEAST_STEPS = 16
"""So many losses are wanted before anything is called unusual."""
PATIENCE_STEPS = 4
"""So many losses in a row above the bound are no accident."""


class StopRule:
    """Asked after backward and before the optimizer's step, with numbers that are the same on every rank.

    A loss or a gradient norm that is not finite stops a run at once, and its weights are those of the step before. With
    ``spike_factor`` a loss above so many times the median of the last ``WINDOW_STEPS`` counts as a spike, and stays out of
    that median; ``PATIENCE_STEPS`` of them in a row stop the run.
    """

    def __init__(self, spike_factor: float | None = None, usual: Sequence[float] = ()) -> None:
        self._factor = spike_factor
        self._losses = deque(usual, WINDOW_STEPS)
        self._spikes = 0

    @property
    def usual(self) -> list[float]:
        """The losses that the median is of; a run that goes on begins with them."""
        return list(self._losses)

    def reason(self, step: int, loss: float, grad_norm: float | None = None) -> str:
        """Why to stop before ``step`` is made, empty where it may be."""
        for name, value in (("loss", loss), ("gradient norm", grad_norm)):
            if value is not None and not math.isfinite(value):
                return f"the {name} of step {step:,} is {value}"
        if self._factor is None or len(self._losses) < LEAST_STEPS:
            self._losses.append(loss)
            return ""
        usual = median(self._losses)
        if loss <= self._factor * usual:
            self._losses.append(loss)
            self._spikes = 0
            return ""
        self._spikes += 1
        if self._spikes < PATIENCE_STEPS:
            return ""
        return (
            f"the losses of steps {step - self._spikes + 1:,} to {step:,} are above {self._factor:g} times the usual {usual:.4g} "
            f"(the last is {loss:.4g})"
        )
