"""``archc estimate --explain``: where a number comes from."""

from __future__ import annotations

import click

from archc.cli.table import print_pairs, print_table, print_wrapped
from archc.estimation.quantities import Quantity
from archc.units import gib, si

SHOWN = 20
"""Sources in the text; ``--json`` has all."""


def print_quantity(found: Quantity) -> None:
    """A quantity on stdout: its number, its formula, its parts, and its largest sources."""
    click.secho(found.name, bold=True, nl=False)
    click.echo(f" = {found.value:,} {found.unit}{_short(found)}: {found.meaning}")
    if len(found.formula) < 1000:
        print_wrapped(f"= {found.formula}")
    if not found.value:
        return
    click.echo()
    print_pairs([(part, f"{value:,}", f"{value / found.value:.2%}") for part, value in found.by_part().items()])
    click.echo()
    print_table(
        ("first of", "layers", "op", "formula of one", found.unit, "share"),
        [
            (
                source.path,
                f"{source.count} x {source.layer}" if source.layer else "-",
                source.op,
                source.formula if len(source.formula) < 60 else "(see --json)",
                f"{source.value:,}",
                f"{source.value / found.value:.2%}",
            )
            for source in found.sources[:SHOWN]
        ],
        left=4,
    )
    if len(found.sources) > SHOWN:
        rest = sum(source.value for source in found.sources[SHOWN:])
        click.echo(f"  and {len(found.sources) - SHOWN} more, {rest:,} together (--json has all)")


def _short(found: Quantity) -> str:
    if found.unit.startswith("bytes"):
        return f" ({gib(found.value)})"
    return f" ({si(found.value)})"
