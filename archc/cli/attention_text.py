"""Maps of attention as a table and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from torch import Tensor

from archc.attention_maps.maps import AttentionMap
from archc.cli.attention_model import Looked
from archc.cli.files import write_atomically
from archc.cli.table import print_heading, print_table

COLUMNS = ("map", "head", "entropy nats", "distance tokens", "first share")
_MAX_ROWS = 64
"""Heads of one map in the table; a scan has one for each of thousands of channels. --json has all."""


def print_maps(found: Looked) -> None:
    """The table of heads, or of layers where none was chosen."""
    read = f", {len(found.source_tokens)} of the encoder" if found.source_tokens else ""
    print_heading(f"{found.name}: attention over {len(found.tokens)} tokens{read}")
    print_table(COLUMNS, table_rows(found), left=1)
    print_rest(found)


def print_rest(found: Looked) -> None:
    """What the numbers are of."""
    worst = max((one.difference for one in found.maps), default=0.0)
    click.echo(f"\n  map times values is the layer's output within {worst:.1e} of its largest number (float32)")
    if found.is_random:
        click.echo("  random weights: the pattern of the masks is real, the weights are noise")


def table_rows(found: Looked) -> list[tuple[str, ...]]:
    """A row a head of the chosen layer, or one a map with the mean over its heads."""
    rows: list[tuple[str, ...]] = []
    for one in found.maps:
        heads = [(str(number), head) for number, head in enumerate(one.heads) if found.head in (None, number)]
        if found.has_layer and len(heads) <= _MAX_ROWS:
            rows += [(one.title, name, *_told(head.entropy, head.distance, head.first)) for name, head in heads]
            continue
        count = len(one.heads)
        distances = [head.distance for head in one.heads if head.distance is not None]
        rows.append(
            (
                one.title,
                f"mean of {count}",
                *_told(
                    sum(head.entropy for head in one.heads) / count,
                    sum(distances) / count if distances else None,
                    sum(head.first for head in one.heads) / count,
                ),
            )
        )
    return rows


def _told(entropy: float, distance: float | None, first: float) -> tuple[str, str, str]:
    return f"{entropy:.3f}", "-" if distance is None else f"{distance:.2f}", f"{first:.3f}"


def write_picture(found: Looked, path: Path) -> None:
    """The picture beside its place, then under its name."""
    from archc.attention_maps.figure import Panel, drawn, page

    panels: list[Panel] = []
    for one in found.maps:
        rows, columns = found.labels(one)
        column_title = "encoder's token read" if one.reads_source else "token read"
        for title, weights in _shown(one, found.head):
            panels.append(Panel(title, weights, rows, columns, "token that reads", column_title))
    title = f"{found.name}{', random weights' if found.is_random else ''}"
    ending = path.suffix.lower().lstrip(".")
    data = drawn(panels, title, "png" if ending == "png" else "svg")
    if ending == "html":
        data = page(data, f"Attention of {title}", COLUMNS, table_rows(found))
    write_atomically(path, data)


def _shown(one: AttentionMap, head: int | None) -> Iterator[tuple[str, Tensor]]:
    """(title, map) of each panel."""
    if one.weights is None:
        yield one.title, one.mean
        return
    kind = "channel" if one.are_channels else "head"
    for number, weights in enumerate(one.weights):
        if head in (None, number):
            yield f"{one.title}, {kind} {number}", weights
