"""A progress bar or a spinner on stderr, for a person who waits; elsewhere nothing is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""(what is being done, how many are done, of how many)."""


@contextmanager
def progress_bar(title: str) -> Generator[Progress | None]:
    """What moves the bar, or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    # The one import that only a terminal pays for.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def move(name: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{title} {name}")

        yield move


@contextmanager
def busy(title: str) -> Generator[None]:
    """A spinner for work that can't say how far it is."""
    if not sys.stderr.isatty():
        yield
        return
    # The one import that only a terminal pays for.
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield
