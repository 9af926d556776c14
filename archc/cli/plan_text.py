"""A plan for people: bytes of a rank by stage, weights by layer, what ranks send each other, and what can't be trained so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import click

from archc.cli.table import print_heading, print_table, print_wrapped, ranges
from archc.planning.collectives import Collective
from archc.planning.plan import Plan, StagePlan
from archc.planning.plan_rows import StateRow, WeightRow
from archc.units import gib

MOST_COLUMNS = 6
"""Stages shown side by side; of more, first, last, and those that hold most and least."""

_BYTES = (
    ("parameters", "parameters"),
    ("parameters, gathered", "gathered"),
    ("buffers", "buffers"),
    ("master weights", "masters"),
    ("gradients", "gradients"),
    ("gradients in flight", "gradients_in_flight"),
    ("optimizer states", "optimizer"),
)
_KINDS = {
    "all_reduce": "sum over",
    "all_to_all": "exchange over",
    "all_gather": "gather over",
    "loss": "loss over",
    "send": "send along",
}

Row = TypeVar("Row", WeightRow, StateRow)


def print_plan(found: Plan, *, shows_states: bool) -> None:
    """All of it on stdout."""
    parallel = found.parallel
    ranks = "one rank" if parallel.ranks == 1 else f"{parallel.ranks:,} ranks ({parallel})"
    click.secho(f"{found.name}, planned", bold=True, nl=False)
    click.echo(f": {found.dtype}, {found.optimizer}, zero {found.zero}, on {ranks}")
    if found.limits:
        print_heading("archc train can't run this plan")
        for reason in found.limits:
            print_wrapped(reason)
    _print_stages(found)
    for layer, rows in _by_layer(found.weights).items():
        _print_weights(found, layer, rows)
    if shows_states:
        _print_states(found)
    _print_communication(found)
    if found.notes:
        print_heading("notes")
        for note in found.notes:
            print_wrapped(note)


def _print_stages(found: Plan) -> None:
    print_heading("one rank of each stage" if found.parallel.pp > 1 else "one rank")
    shown = _shown(found.stages)
    if len(shown) < len(found.stages):
        click.echo(f"  stages {', '.join(str(each.stage) for each in shown)} of {len(found.stages)}")
    rows: list[list[str]] = []
    for label, name in _BYTES:
        sizes: list[int] = [getattr(each.weights, name) for each in shown]
        if any(sizes):
            rows.append([label, *map(_cell, sizes)])
    rows.append(["there all the time", *(_cell(each.weights.resident) for each in shown)])
    rows.append(["weights that others hold too", *(_cell(each.replicated_bytes) for each in shown)])
    rows.append(["layers", *(f"{len(each.layers):,}" for each in shown)])
    print_table(("bytes", *(f"stage {each.stage}" for each in shown)), rows)


def _shown(stages: Sequence[StagePlan]) -> list[StagePlan]:
    if len(stages) <= MOST_COLUMNS:
        return list(stages)
    by_size = sorted(stages, key=lambda stage: stage.weights.resident)
    return sorted({each.stage: each for each in (stages[0], stages[-1], by_size[0], by_size[-1])}.values(), key=_index)


def _index(stage: StagePlan) -> int:
    return stage.stage


def _cell(count_bytes: int) -> str:
    return gib(count_bytes) if count_bytes else "-"


def _by_layer(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.layer, []).append(row)
    return found


def _place(found: Plan, layer: str, rows: Sequence[WeightRow] | Sequence[StateRow]) -> str:
    """``kda + moe, 5 layers, stages 0-1``."""
    count = max(row.layers for row in rows)
    text = f"{layer}, {count:,} layer{'s' if count > 1 else ''}" if layer else "outside of layers"
    if found.parallel.pp == 1:
        return text
    stages = sorted({stage for row in rows for stage in row.stages})
    return f"{text}, stage{'s' if len(stages) > 1 else ''} {ranges(stages)}"


def _print_weights(found: Plan, layer: str, rows: Sequence[WeightRow]) -> None:
    print_heading(f"weights: {_place(found, layer, rows)}")
    rests = found.zero == 3 and found.parallel.dp * found.parallel.cp > 1
    columns = ["weight", "whole", "a rank's", "cut"]
    cells = [[row.name, _shape(row.whole), _shape(row.local), _cut(row)] for row in rows]
    if rests:
        columns.insert(3, "at rest")
        for row, line in zip(rows, cells, strict=True):
            line.insert(3, _shape(row.rests))
    print_table(columns, cells, left=len(columns))


def _cut(row: WeightRow) -> str:
    said = [f"{axis} by {by} {ways}" for _, axis, by, ways in row.cuts]
    if row.why:
        said.append(f"whole: {row.why}" if not row.cuts else row.why)
    if row.held_by > 1:
        said.append(f"the same on {row.held_by:,} ranks")
    return ", ".join(said) or "-"


def _shape(sizes: Sequence[object]) -> str:
    return " x ".join(str(size) for size in sizes) or "scalar"


def _sizes(dims: Sequence[object]) -> str:
    return f"({', '.join(map(str, dims))})"


def _print_states(found: Plan) -> None:
    if not found.states:
        print_heading("states")
        click.echo("  none: nothing is kept between calls")
    for layer, rows in _by_layer(found.states).items():
        print_heading(f"states: {_place(found, layer, rows)}")
        cells = [(row.name, _sizes(row.whole), _sizes(row.local), _copies(row)) for row in rows]
        print_table(("state", "whole", "a rank's", "held"), cells, left=4)


def _copies(row: StateRow) -> str:
    return ", ".join([f"by {row.copies} ranks" if row.copies > 1 else "once", *([row.why] if row.why else [])])


def _print_communication(found: Plan) -> None:
    if found.parallel.ranks == 1:
        return
    print_heading("what ranks send each other in forward; backward mirrors it")
    rows = [_sent(each) for each in _alike(found.communication)]
    if rows:
        print_table(("layer", "op", "how", "what", "B a token"), rows, left=4)
    elif not found.gathers:
        click.echo("  nothing")
    if found.gathers:
        ranks = found.parallel.dp * found.parallel.cp
        verb = "gathered before forward and before backward" if found.zero == 3 else "gathered after the optimizer"
        print_wrapped(
            f"zero {found.zero} over {ranks:,} ranks (dp x cp): weights are {verb}, gradients summed and shared out"
        )
        print_table(
            ("one layer of", "gathered"),
            [(name or "outside of layers", gib(count_bytes)) for name, count_bytes in found.gathers.items()],
        )


def _alike(found: Sequence[Collective]) -> list[Collective]:
    """What stages send on, once where it is the same between all."""
    sends = [each for each in found if each.kind == "send"]
    if len(sends) < 2 or len({each.what for each in sends}) > 1:
        return list(found)
    others = [each for each in found if each.kind != "send"]
    return [*others, replace(sends[0], leaf="each stage to the next")]


def _sent(each: Collective) -> tuple[str, ...]:
    layers = f"{each.layer}, {each.layers:,} layer{'s' if each.layers > 1 else ''}" if each.layer else "-"
    return layers, each.leaf, f"{_KINDS[each.kind]} {each.by} {each.ranks}", each.what, f"{each.token_bytes:,}"
