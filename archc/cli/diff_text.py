"""What is otherwise between two architectures, for people: structure first, then each cost with the parts it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import click

from archc.cli.quantities import changed, shown
from archc.cli.table import print_heading, print_table, print_wrapped, ranges
from archc.cli.time_options import roof_text
from archc.planning.comparison.diff import DIFF_CONVENTIONS, Diff, PartChange, QuantityChange
from archc.planning.comparison.structure import KeyChange

_MAX_LINES = 30
"""Lines of the graph, and keys, before the rest is counted; ``--json`` has all."""
_MAX_PARTS = 10
_SMALLEST_SHARE = 0.0005
"""A part whose share would be printed as 0.0% is counted with the rest."""
_MAX_REASONS = 3
_VALUE_CHARACTERS = 44
_ALONE = ("parameters", "cache_bytes", "decode_flops")
"""What a key does alone to these is shown beside it: a size, a length and a speed."""
_ALONE_WITHOUT_CACHE = ("parameters", "forward_flops")


def print_diff(found: Diff) -> None:
    """The whole comparison on stdout."""
    click.echo(f"A  {click.style(found.a, bold=True)}")
    click.echo(f"B  {click.style(found.b, bold=True)}")
    options = found.options
    dtypes = (("weights", options.dtype), ("cache", options.kv_cache_dtype))
    stated = "".join(f", {what} {dtype}" for what, dtype in dtypes if dtype)
    click.echo(f"batch {options.batch_size}, length {found.length:,} tokens{stated}")
    if not found.is_different:
        click.echo("no difference: the same keys, layers and graph")
        return
    _print_keys(found)
    _print_layers(found)
    _print_graph(found.graph)
    _print_costs(found)
    print_heading("conventions")
    lines = [f"{topic}: {text}" for topic, text in DIFF_CONVENTIONS.items()]
    for line in (*lines, *((roof_text(options),) if options.gpu else ())):
        print_wrapped(line)


def _print_keys(found: Diff) -> None:
    if not found.keys:
        return
    print_heading("keys, and what each changes alone")
    names = _ALONE if _differs(found, "decode_flops") else _ALONE_WITHOUT_CACHE
    quantities = [found.quantities[name] for name in names if _differs(found, name)]
    columns = ("key", "A", "B", *(quantity.title for quantity in quantities))
    alone = {path: each for each in found.alone for path in each.paths}
    keys = {change.path: change for change in found.keys}
    rows: list[tuple[str, ...]] = []
    for path, change in list(keys.items())[:_MAX_LINES]:
        trial = alone.get(path)
        row = (path, _value(change, change.a, change.in_a), _value(change, change.b, change.in_b))
        if trial is None or trial.refused or path != trial.paths[0]:
            # What is tried together stands beside the first of its keys.
            together = trial is not None and not trial.refused
            rows.append((*row, *('"' if together else "-" for _ in quantities)))
        else:
            effects = (changed(trial.differences.get(quantity.name, 0), quantity.unit) for quantity in quantities)
            rows.append((*row, *effects))
    if any(found.rest(quantity.name) for quantity in quantities):
        rest = (changed(found.rest(quantity.name), quantity.unit) for quantity in quantities)
        rows.append(("only together", "", "", *rest))
    print_table(columns, rows, left=3)
    if len(keys) > _MAX_LINES:
        click.echo(f"  and {len(keys) - _MAX_LINES} more keys; --json has all")


def _differs(found: Diff, name: str) -> bool:
    return name in found.quantities and found.quantities[name].difference is not None


def _value(change: KeyChange, value: Any, is_there: bool) -> str:
    """A value in few characters; of a whole section its kind."""
    if not is_there:
        return "-"
    if isinstance(value, Mapping):
        section = cast("Mapping[str, Any]", value)
        kind = section.get("kind") or section.get("policy")
        return f"{{{kind}, …}}" if kind else "{…}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[: _VALUE_CHARACTERS - 1]}…"


def _print_layers(found: Diff) -> None:
    print_heading("layers")
    rows: list[tuple[str, ...]] = []
    for section in dict.fromkeys((*found.layer_counts[0], *found.layer_counts[1])):
        for kind in dict.fromkeys(kind for side in found.layer_counts for kind in side.get(section, {})):
            counts = [str(side.get(section, {}).get(kind, "-")) for side in found.layer_counts]
            rows.append((section, kind, *counts))
    print_table(("section", "layer", "A", "B"), rows, left=2)
    if not found.layers:
        click.echo("  each layer has the same sub-layers in both")
        return
    click.echo()
    lines = [
        (change.section, ranges(change.layers), change.a or "-", change.b or "-")
        for change in found.layers[:_MAX_LINES]
    ]
    print_table(("section", "layers", "A", "B"), lines, left=4)
    if len(found.layers) > _MAX_LINES:
        click.echo(f"  and {len(found.layers) - _MAX_LINES} more; --json has all")


def _print_graph(lines: list[str]) -> None:
    if not lines:
        return
    print_heading("graph: B is, A was")
    for line in lines[:_MAX_LINES]:
        click.echo(f"  {line}")
    if len(lines) > _MAX_LINES:
        click.echo(f"  and {len(lines) - _MAX_LINES} more; --json has all")


def _print_costs(found: Diff) -> None:
    print_heading(f"costs at {found.length:,} tokens, and the parts that their differences come from")
    rows: list[list[str]] = []
    told: dict[tuple[tuple[str, ...], ...], str] = {}
    for change in _worth_showing(found):
        ratio = "-" if change.ratio is None else f"{change.ratio:.4g}"
        values = (shown(change.a, change.unit), shown(change.b, change.unit), changed(change.difference, change.unit))
        parts = _parts(change, found)
        alike = tuple((row[0], row[-2], row[-1]) for row in parts)
        # Weights that are all of one dtype come from where the parameters do.
        as_before = told.setdefault(alike, change.title) if parts else ""
        is_told = as_before not in ("", change.title)
        rows.append([change.title, *values, ratio, f"from the same parts as {as_before}" if is_told else ""])
        rows += [] if is_told else parts
    widest = max(len(row[-1]) for row in rows)
    # The last column is text, read from the left.
    table = [(*row[:-1], row[-1].ljust(widest)) for row in rows]
    print_table(("", "A", "B", "difference", "B/A, share", "why".ljust(widest)), table)


def _parts(change: QuantityChange, found: Diff) -> list[list[str]]:
    """The parts with the largest differences, and a line for the others, so that the lines sum to the whole."""
    unit = change.unit
    large = [part for part in change.by_part if abs(change.share(part) or 1) >= _SMALLEST_SHARE][:_MAX_PARTS]
    rows = [
        [
            f"  {part.part}",
            shown(part.a, unit),
            shown(part.b, unit),
            changed(part.difference, unit),
            _percent(change.share(part)),
            _why(part, found),
        ]
        for part in large
    ]
    if others := change.by_part[len(large) :]:
        difference = sum(part.difference for part in others)
        share = difference / change.difference if change.difference else None
        name = others[0].part if len(others) == 1 else f"{len(others)} more parts"
        rows.append([f"  {name}", "", "", changed(difference, unit), _percent(share), ""])
    return rows


def _worth_showing(found: Diff) -> list[QuantityChange]:
    """The quantities that one of the two has; what says the same as the line above is left out."""
    kept: list[QuantityChange] = []
    for name, change in found.quantities.items():
        if not change.a and not change.b:
            continue
        growth = found.quantities.get("cache_bytes_per_token")
        is_alike = growth is not None and (growth.a, growth.b) == (change.a, change.b)
        if name != "cache_bytes_per_token_below_windows" or not is_alike:
            kept.append(change)
    return kept


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _why(part: PartChange, found: Diff) -> str:
    """Where the part's difference comes from: how many layers have it, and the keys that change it alone."""
    reasons: list[str] = []
    schedules = {each.label for each in found.alone if len(each.paths) > 1 or each.label not in each.paths}
    if part.layers_a != part.layers_b:
        reasons.append(f"{part.layers_a} -> {part.layers_b} layers")
    elif not part.a or not part.b:
        reasons.append("only in B" if part.b else "only in A")
    keys = sorted(part.keys, key=lambda label: -abs(part.keys[label]))
    if part.layers_a != part.layers_b:
        keys = [label for label in keys if label not in schedules]
    for label in keys[:_MAX_REASONS]:
        goes_against = (part.keys[label] < 0) != (part.difference < 0)
        reasons.append(f"{label}{' (the other way)' if goes_against else ''}")
    if len(keys) > _MAX_REASONS:
        reasons.append(f"and {len(keys) - _MAX_REASONS} more")
    return ", ".join(reasons)
