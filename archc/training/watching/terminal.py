"""A bar for a person at a terminal: steps, loss, pace, memory, and how long it will take."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from archc.training.watching.lines import Pace, memory_words, sample_line, start_line, step_words
from archc.training.watching.watcher import Quiet, Record, RunInfo, Sample


class _Bar(Progress):
    """A bar, and under it a line of what was said last."""

    said = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.said:
            yield Text(self.said)


class TerminalBar(Quiet):
    """Rich's progress on stderr. Evaluations, samples and checkpoints stand above it and stay."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar = _Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._pace: Pace | None = None
        self._said: list[str] = []
        self._preparing: TaskID | None = None

    def preparing(self, name: str, done: int, total: int) -> None:
        """What is done before the first step: ``done`` of ``total``."""
        if self._preparing is None:
            self._preparing = self._bar.add_task(name, total=total)
            self._bar.start()
        self._bar.update(self._preparing, description=name, completed=done, total=total)

    def on_start(self, run: RunInfo) -> None:
        if self._preparing is not None:
            self._bar.remove_task(self._preparing)
        self._pace = Pace(run)
        self._say(start_line(run))
        for note in run.notes:
            self._say(f"note: {note}")
        self._task = self._bar.add_task(run.name, total=run.steps, completed=run.first_step)
        self._bar.start()

    def on_step(self, record: Record) -> None:
        assert self._pace is not None, "on_start comes first"
        self._pace.add(record)
        step = int(record["step"] or 0)
        if step % self._pace.run.log_every == 0 or not self._said:
            self._said = self._pace.said()
        words = [*step_words(record), *self._said, *memory_words(record)]
        self._bar.said = "  ".join(words)
        self._bar.update(self._task, completed=step)
        if "eval_loss" in record:
            self._say("  ".join([f"step {step}", *step_words(record)]))

    def on_checkpoint(self, step: int, path: Path) -> None:
        self._say(f"checkpoint of step {step}: {path}")

    def on_sample(self, sample: Sample) -> None:
        self._say(sample_line(sample))

    def on_stop(self, reason: str) -> None:
        self._bar.stop()
        if reason:
            self._say(f"stopped: {reason}")

    def close(self) -> None:
        self._bar.stop()

    def _say(self, text: str) -> None:
        # A text of the model may hold what rich would take for markup.
        self._console.print(text, markup=False, highlight=False)
