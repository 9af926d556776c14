"""How a model's costs grow, for people: one line a mixer or ffn, then one table a length."""

from __future__ import annotations

import click

from archc.cli.table import print_heading, print_table, print_wrapped
from archc.estimation.complexity import COMPARED, COMPLEXITY_CONVENTIONS, Complexity, KindGrowth
from archc.estimation.complexity_growth import BOUNDS
from archc.units import gib, si


def print_complexity(found: Complexity) -> None:
    """All of it on stdout."""
    click.secho(found.name, bold=True, nl=False)
    click.echo(f": {found.dtype}, one layer of each kind, n tokens")
    _print_growth(found)
    _print_crossings(found)
    for length in found.lengths:
        _print_costs(found, length)
    print_heading("conventions")
    for topic, text in COMPLEXITY_CONVENTIONS.items():
        print_wrapped(f"{topic}: {text}")


def _print_growth(found: Complexity) -> None:
    print_heading("growth with the length n")
    rows = [
        (*_named(kind), *(str(growth) for growth in kind.growth.values()), _bounds(kind))
        for kind in (*found.kinds, found.whole)
    ]
    has_bounds = any(row[-1] for row in rows)
    columns = ("", "kind", "layers", "prefill time", "decode time", "cache", "bounds, in tokens")
    # Texts such as O(n) are read from the left, as names are.
    width = len(columns) if has_bounds else len(columns) - 1
    print_table(columns[:width], [row[:width] for row in rows], left=width)


def _print_crossings(found: Complexity) -> None:
    compared = [kind for kind in found.kinds if kind.overtakes is not None]
    if not compared:
        return
    print_heading("cheaper than full attention from this length on, in tokens")
    rows: list[tuple[str, ...]] = []
    for kind in compared:
        assert kind.overtakes is not None
        lengths = (
            "-" if form not in kind.overtakes.tokens else _from(kind.overtakes.tokens[form]) for form in COMPARED
        )
        rows.append((_label(kind), kind.overtakes.against, *lengths))
    print_table(("kind", "full attention", "prefill FLOPs", "decode FLOPs", "cache bytes"), rows, left=2)


def _from(length: int | None) -> str:
    return "never" if length is None else f"{length:,}"


def _print_costs(found: Complexity, length: int) -> None:
    batch = f", batch {found.batch_size}" if found.batch_size > 1 else ""
    print_heading(f"one layer at {length:,} tokens{batch}")
    columns = ("kind", "prefill FLOPs", "moved", "FLOPs/B", "decode FLOPs", "moved", "FLOPs/B")
    rows: list[tuple[str, ...]] = []
    for kind in (*found.kinds, found.whole):
        row = [_label(kind) if kind is not found.whole else "whole model"]
        for step in kind.at[length].values():
            does_work = step.flops > 0
            row += [si(step.flops), gib(step.bytes), f"{step.flops_per_byte:,.2f}"] if does_work else ["-", "-", "-"]
        rows.append(tuple(row))
    print_table(columns, rows)


def _named(kind: KindGrowth) -> tuple[str, ...]:
    family = " ".join(part for part in (kind.section, kind.family) if part)
    return family, kind.name, f"{kind.layers:,}"


def _label(kind: KindGrowth) -> str:
    return " ".join(part for part in (kind.section, kind.name) if part)


def _bounds(kind: KindGrowth) -> str:
    """``w = 128``: every bound that the line names."""
    found: dict[str, int] = {}
    for growth in kind.growth.values():
        found |= growth.bounds
    return ", ".join(f"{letter} = {found[letter]:,}" for letter in dict.fromkeys(BOUNDS.values()) if letter in found)
