"""The learning rate of a step: a function of its number and the options, so that a resumed run needs no state of it.

* Warm-up rises in equal parts, the first step has one of them, and the last has the peak.
* ``cosine`` (arXiv 1608.03983) falls to ``min_lr_ratio`` of the peak, which the last step has.
* ``wsd`` (warm-up, stable, decay: MiniCPM, arXiv 2404.06395) keeps the peak and falls in a line over the last ``decay_steps``;
  a run that stopped before them goes on at the peak with other ``steps``. MiniCPM leaves the form of the fall open; a line is
  what arXiv 2405.18392 compares with.
* ``constant`` keeps the peak.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from archc.training.options import TrainOptions


class HasGroups(Protocol):
    """What has torch's groups of parameters."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...


def lr_at(step: int, options: TrainOptions) -> float:
    """The learning rate of step ``step``, counted from 0; steps beyond the last have what the last has."""
    peak, warmup = options.peak_lr, options.warmup
    done = min(step + 1, options.steps)
    if done < warmup:
        return peak * done / warmup
    floor = options.least_lr_ratio
    match options.schedule:
        case "cosine":
            part = (done - warmup) / max(1, options.steps - warmup)
            return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * part)))
        case "wsd":
            left = options.steps - done
            part = min(1.0, left / options.decay) if options.decay else 1.0
            return peak * (floor + (1 - floor) * part)
        case _:
            return peak


def set_lr(optimizer: HasGroups, lr: float) -> None:
    """Give every group of an optimizer one learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr
