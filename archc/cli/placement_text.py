"""Where the nodes of a file go, for people."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from archc.cli.table import Row, print_heading, print_table

SHOWN_NODES = 4
"""Nodes that are named before the rest is counted."""


def print_placement(placement: dict[str, Any]) -> None:
    """Nodes by provider, what is on the CPU and why, copies, and limits."""
    columns = [provider for provider in ("cuda", "cpu", "") if provider in placement["counts"]]
    names = [provider or "no kernel" for provider in columns]
    total = ", ".join(f"{placement['counts'][p]:,} {name}" for p, name in zip(columns, names, strict=True))
    print_heading(f"placement for {placement['provider']}: {total}")
    click.echo(f"  says {placement['source']}")
    rows: list[Row] = [
        (op, *(f"{counts[provider]:,}" if provider in counts else "" for provider in columns))
        for op, counts in placement["nodes"].items()
    ]
    print_table(("op", *names), rows)
    _print_off(placement)
    if placement["provider"] == "cuda":
        _print_copies(placement["memcpy"])
    if placement["limits"]:
        print_heading("limits")
        for limit in placement["limits"]:
            click.echo(f"  {limit['severity']}: {limit['op']}: {limit['message']}")
            if limit["choice"]:
                click.echo(f"    instead: {limit['choice']}")
            click.echo(f"    {_listed(limit['nodes'])}")


def failed_checks(placement: dict[str, Any], *, on_cpu: bool, on_memcpy: bool) -> list[str]:
    """What the flags of the command forbid and the file does, a line each."""
    lines: list[str] = []
    away = [node for node in placement["off"] if not node["harmless"]]
    if on_cpu and away:
        lines.append(
            f"{_count(away, 'node')} not on {placement['provider']}: {_listed([node['name'] for node in away])}"
        )
    if on_memcpy and placement["memcpy"]:
        values = [copy["value"] for copy in placement["memcpy"]]
        lines.append(f"{_count(values, 'value')} copied between CPU and GPU at every run: {_listed(values)}")
    return lines


def _print_off(placement: dict[str, Any]) -> None:
    harmless = Counter(node["op"] for node in placement["off"] if node["reason"] == "cpu-preferred")
    casts = Counter(node["op"] for node in placement["off"] if node["reason"] == "cast")
    if not (harmless or casts or placement["decomposed"]):
        return
    print_heading("elsewhere")
    if harmless:
        text = "shape arithmetic, which onnxruntime keeps on the CPU on purpose"
        click.echo(f"  {sum(harmless.values())} nodes are {text}: {_tally(harmless)}")
    if casts:
        click.echo(f"  {sum(casts.values())} nodes are computed in float32 between casts: {_tally(casts)}")
    parts = {(node["op"], tuple(dict.fromkeys(node["body"]))) for node in placement["decomposed"]}
    for op, body in sorted(parts):
        count = sum(node["op"] == op for node in placement["decomposed"])
        click.echo(f"  {count} x {op}: decomposed into {', '.join(body) or 'what is not known'}")


def _print_copies(copies: list[dict[str, Any]]) -> None:
    print_heading(f"Memcpy nodes: {len(copies)}")
    for copy in copies[:SHOWN_NODES]:
        places = f": from {copy['made_by']} to {copy['read_by']}" if copy["made_by"] else ""
        click.echo(f"  {copy['op']} of {copy['value']}{places}")
    if len(copies) > SHOWN_NODES:
        click.echo(f"  and {len(copies) - SHOWN_NODES} more")


def _tally(counts: Counter[str]) -> str:
    return ", ".join(f"{op} {count}" for op, count in counts.most_common())


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
    return ", ".join(names[:SHOWN_NODES]) + more


def _count(items: list[Any], noun: str) -> str:
    return f"{len(items)} {noun}{'s are' if len(items) != 1 else ' is'}"
