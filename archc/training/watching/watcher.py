"""Who is told what a run does. Only the first rank has watchers, and nothing that they do changes a number of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Record = Mapping[str, float | int | None]
"""What is known after a step: ``step`` (done so far), ``loss``, ``lr``, ``grad_norm``, ``tokens`` (learned from so far),
``tokens_per_s``, ``flops_per_s``, ``mfu``, ``step_s``, ``memory_bytes``, ``time`` (seconds since 1970), and what else there is:
``eval_loss``, auxiliary losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run that begins or goes on. ``first_step`` steps were done before; lengths are in tokens; ``folder`` is None where
    nothing is kept.

    ``flops_per_step`` are the model's, forward and backward; ``peak_flops_per_s`` are those of all devices, None where unknown.
    ``notes`` say what is allowed and slow.
    """

    name: str
    folder: Path | None
    steps: int
    first_step: int
    log_every: int
    ranks: int
    parameters: int
    tokens_per_step: int
    flops_per_step: int
    peak_flops_per_s: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a model wrote after ``step`` steps. ``kind`` is ``greedy`` or ``drawn``; without a tokenizer texts are ids."""

    step: int
    kind: str
    prompt: str
    text: str
    ids: tuple[int, ...]


class Watcher(Protocol):
    """Listens. ``on_step`` is called after every step, in order; ``on_stop`` at the end, however it comes."""

    def on_start(self, run: RunInfo) -> None: ...

    def on_step(self, record: Record) -> None: ...

    def on_checkpoint(self, step: int, path: Path) -> None: ...

    def on_sample(self, sample: Sample) -> None: ...

    def on_stop(self, reason: str) -> None:
        """``reason`` is empty where all steps were done."""
        ...

    def close(self) -> None: ...


class Quiet:
    """Listens to nothing: what a watcher of some calls begins with."""

    def on_start(self, run: RunInfo) -> None:
        """Nothing."""

    def on_step(self, record: Record) -> None:
        """Nothing."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Nothing."""

    def on_sample(self, sample: Sample) -> None:
        """Nothing."""

    def on_stop(self, reason: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Watchers:
    """Several as one, told in order."""

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self._all = tuple(watchers)

    def on_start(self, run: RunInfo) -> None:
        for each in self._all:
            each.on_start(run)

    def on_step(self, record: Record) -> None:
        for each in self._all:
            each.on_step(record)

    def on_checkpoint(self, step: int, path: Path) -> None:
        for each in self._all:
            each.on_checkpoint(step, path)

    def on_sample(self, sample: Sample) -> None:
        for each in self._all:
            each.on_sample(sample)

    def on_stop(self, reason: str) -> None:
        for each in self._all:
            each.on_stop(reason)

    def close(self) -> None:
        for each in self._all:
            each.close()
