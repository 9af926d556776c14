"""A comparison for people: a table in the terminal, or in Markdown."""

from __future__ import annotations

import click

from archc.cli.quantities import shown
from archc.cli.table import print_heading, print_table, print_wrapped
from archc.cli.time_options import roof_text
from archc.planning.comparison.compare import COMPARE_CONVENTIONS, Comparison, Row

_MARK = " *"
"""Behind the least value of a row."""


def print_comparison(found: Comparison) -> None:
    """The table on stdout, rows that say the same as the one above left out."""
    options = found.options
    dtypes = (("weights", options.dtype), ("cache", options.kv_cache_dtype))
    stated = "".join(f", {what} {dtype}" for what, dtype in dtypes if dtype)
    changed = "".join(f", {override}" for override in found.overrides)
    click.echo(f"batch {options.batch_size}{stated}{changed}; * is the least of a row of costs")
    rows = told(found)
    fixed, at_length = ([row for row in rows if (row.length is None) == is_fixed] for is_fixed in (True, False))
    print_heading("whatever the length")
    # Every value ends in a mark or in its room, so that numbers stay under each other.
    room = " " * len(_MARK)
    columns = [f"{name}{room}" for name in found.models]
    print_table(("", *columns), [(row.title, *_cells(row, room)) for row in fixed])
    print_heading("at a length, in tokens")
    print_table(("", "tokens", *columns), [(row.title, f"{row.length:,}", *_cells(row, room)) for row in at_length])
    print_heading("conventions")
    lines = [f"{topic}: {text}" for topic, text in COMPARE_CONVENTIONS.items()]
    for line in (*lines, *((roof_text(options),) if options.gpu else ())):
        print_wrapped(line)


def markdown(found: Comparison) -> str:
    """The table for a page; the least of a row of costs is bold."""
    lines = [("", *map(_escaped, found.models)), ("---", *("---:" for _ in found.models))]
    for row in told(found):
        at = "" if row.length is None else f" at {row.length:,} tokens"
        cells = [shown(value, row.unit) for value in row.values]
        for column in row.least:
            cells[column] = f"**{cells[column]}**"
        lines.append((f"{row.title}{at}", *cells))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def told(found: Comparison) -> list[Row]:
    """The rows that say something: windows where there are some."""
    growth = next((row.values for row in found.rows if row.name == "cache_bytes_per_token"), None)
    return [row for row in found.rows if row.name != "cache_bytes_per_token_below_windows" or row.values != growth]


def _cells(row: Row, room: str) -> list[str]:
    return [
        f"{shown(value, row.unit)}{_MARK if column in row.least else room}" for column, value in enumerate(row.values)
    ]


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
