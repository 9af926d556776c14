"""Pipeline schedules: how many micro-batches a stage has run forward and not yet backward when it holds most of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """``in_flight(stage, stages, micro_batches, virtual)``: passes over one of the ``virtual`` runs of layers of a stage.

    ``keeps_losses``: the last stage holds a loss for each of them, not for the one that turns round.
    """

    name: str
    in_flight: Callable[[int, int, int, int], int]
    source: str
    keeps_losses: bool = False


def _gpipe(stage: int, stages: int, micro_batches: int, virtual: int) -> int:
    return micro_batches


def _one_forward_one_backward(stage: int, stages: int, micro_batches: int, virtual: int) -> int:
    return min(stages - stage, micro_batches)


def _interleaved(stage: int, stages: int, micro_batches: int, virtual: int) -> int:
    warm_up = 2 * (stages - stage - 1) + (virtual - 1) * stages
    return min(warm_up + 1, micro_batches * virtual)


def _zero_bubble(stage: int, stages: int, micro_batches: int, virtual: int) -> int:
    return min(stages, micro_batches)


SCHEDULES: dict[str, Schedule] = {
    each.name: each
    for each in (
        Schedule(
            "gpipe", _gpipe, "all forwards, then all backwards (arXiv 1811.06965): every micro-batch", keeps_losses=True
        ),
        Schedule(
            "1f1b",
            _one_forward_one_backward,
            "PipeDream-Flush, Megatron-LM's default (arXiv 2104.04473): as many as there are stages from this one on",
        ),
        Schedule(
            "interleaved",
            _interleaved,
            "Megatron-LM's interleaved 1F1B (arXiv 2104.04473): 2 (stages - stage - 1) + (virtual - 1) stages + 1 passes over "
            "one run of layers; on the first stage the layers x (1 + (p - 1) / (p v)) of arXiv 2205.05198",
        ),
        Schedule(
            "zero-bubble",
            _zero_bubble,
            "ZB-H1 (arXiv 2401.10241): every stage has as many as there are stages; those that wait for their weights' gradient "
            "only are counted whole, the most they can hold",
        ),
    )
}
"""Name -> schedule."""
