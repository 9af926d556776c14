"""Aligned text, or a rich table where stdout is a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from shutil import get_terminal_size

import click

from archc.cli.options import stdout_is_terminal

Row = Sequence[str]

WIDTH = 118
"""Columns after which sentences are wrapped."""


def print_heading(text: str) -> None:
    """A line above a table, bold where that is possible."""
    click.echo()
    click.secho(text, bold=True)


def print_wrapped(text: str) -> None:
    """A sentence under a heading, wrapped."""
    click.echo(textwrap.fill(text, width=WIDTH, initial_indent="  ", subsequent_indent="    "))


def print_table(columns: Row, rows: Sequence[Row], *, left: int = 1) -> None:
    """Rows under their column names; the first ``left`` columns are aligned left, numbers right."""
    lines = aligned([columns, *rows], left=left)
    # Rich would cut numbers that don't fit; a long line is only wrapped.
    if stdout_is_terminal() and max(map(len, lines)) <= get_terminal_size().columns - 4:
        _print_rich(columns, rows, left)
        return
    for line in lines:
        click.echo(f"  {line}")


def print_pairs(rows: Sequence[Row], *, left: int = 1) -> None:
    """Rows without column names, aligned."""
    for line in aligned(rows, left=left):
        click.echo(f"  {line}")


def aligned(rows: Sequence[Row], *, left: int) -> list[str]:
    """The rows as lines, two spaces between columns, nothing at line ends."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _print_rich(columns: Row, rows: Sequence[Row], left: int) -> None:
    # The one import that only a terminal pays for.
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def ranges(numbers: Sequence[int]) -> str:
    """``0-2,4-6`` of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
