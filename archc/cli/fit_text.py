"""A fit for people: the values found, what they come to, and how they were searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from archc.cli.table import print_heading, print_pairs, print_table
from archc.units import gib, si

if TYPE_CHECKING:
    from archc.planning.search.fit import Fitted


def print_fit(found: Fitted) -> None:
    """All of it on stdout."""
    click.secho(found.name, bold=True)
    print_pairs([(name, str(value)) for name, value in found.values.items()])
    print_heading("asked and found")
    rows = [
        (
            met.name,
            f"{'at most ' if met.is_limit else ''}{_shown(met.target, met.unit)}",
            _shown(met.found, met.unit),
            f"{met.difference_percent:+.2f} %",
        )
        for met in found.met
    ]
    print_table(("", "asked", "found", "difference"), rows)
    print_heading("comes to")
    print_pairs([(_title(name), _shown(number, _unit(name))) for name, number in found.quantities.items()])
    click.echo()
    invalid = f", {found.num_invalid:,} of them invalid" if found.num_invalid else ""
    click.echo(f"tried {found.num_tried:,} of {found.num_combinations:,} combinations{invalid}")
    if found.bisected:
        click.echo(f"{found.bisected} was bisected: along it costs rise or fall throughout, as they did wherever asked")


def _shown(number: int, unit: str) -> str:
    return f"{number:,} ({gib(number) if unit == 'B' else si(number)})"


def _unit(name: str) -> str:
    return "B" if "bytes" in name else ""


def _title(name: str) -> str:
    length = name.rpartition("_at_")[2]
    if name.startswith("cache_bytes_at_"):
        return f"cache at {int(length):,} tokens"
    return {"weight_bytes": "weights"}.get(name, name.replace("_", " "))
