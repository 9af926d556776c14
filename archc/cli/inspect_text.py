"""What ``archc inspect`` found, for people."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.export_text import folded
from archc.cli.placement_text import print_placement
from archc.cli.table import Row, print_heading, print_pairs, print_table
from archc.units import gib


def print_inspection(found: dict[str, Any]) -> None:
    """The outline of a file, then where its nodes go."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in found["opsets"].items())
    click.secho(found["file"], bold=True, nl=False)
    by = f", by {found['producer']}" if found["producer"] else ""
    click.echo(f": IR {found['ir_version']}, opsets {opsets}, {found['nodes']:,} nodes{by}")
    click.echo(f"  weights {found['weight_bytes']:,} B ({gib(found['weight_bytes'])})")
    for name, size in found["files"].items():
        click.echo(f"  {name}: " + ("missing" if size is None else f"{size:,} B"))
    for heading in ("inputs", "outputs"):
        print_heading(heading)
        print_pairs([(t["name"], t["dtype"], _shape(t["shape"])) for t in found[heading]], left=3)
    if found["caches"]:
        print_heading("caches")
        rows: list[Row] = [
            (c["name"], c["dtype"], _shape(c["shape"]), f"{c['bytes_per_token']:,}", f"{c['bytes_per_sequence']:,}")
            for c in folded(found["caches"])
        ]
        print_table(("input", "dtype", "shape", "B/token", "B/sequence"), rows, left=3)
        lost = [cache["name"] for cache in found["caches"] if cache["output"] is None]
        if lost:
            click.echo(f"  without an output that replaces them: {', '.join(lost)}")
    print_placement(found["placement"])


def _shape(dims: list[object]) -> str:
    return " x ".join(str(dim) for dim in dims) or "scalar"
