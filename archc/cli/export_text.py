"""An exporter's report for people."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.table import print_heading, print_pairs, print_table, ranges
from archc.units import gib


def print_report(report: dict[str, Any]) -> None:
    """Files, the caches that a caller must bring, the forms that were chosen, and what was checked."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in report["opsets"].items())
    click.secho(report["name"], bold=True, nl=False)
    click.echo(f": {report['dtype']}, opsets {opsets}, IR {report['ir_version']}, onnxruntime {report['onnxruntime']}")
    print_heading("files")
    print_pairs([(path, f"{size:,} B", gib(size)) for path, size in report["files"].items()])
    click.echo(f"  weights are {report['weight_bytes']:,} B")
    print_heading(f"caches (capacity = {report['capacity']})")
    rows: list[tuple[str, ...]] = [
        (
            cache["name"],
            cache["dtype"],
            " x ".join(str(dim) for dim in cache["shape"]),
            f"{cache['bytes_per_token']:,}",
            f"{cache['bytes_per_sequence']:,}",
        )
        for cache in folded(report["caches"])
    ]
    if rows:
        print_table(("input", "dtype", "shape", "B/token", "B/sequence"), rows, left=3)
    nodes = report["nodes"]
    print_heading(f"nodes: {sum(nodes.values()):,}")
    print_pairs([(op, f"{count:,}") for op, count in nodes.items()])
    print_heading("forms")
    for choice in report["choices"]:
        click.echo(f"  {choice['count']} x {choice['op']}: {choice['form']}")
    for heading in ("checks", "notes"):
        if report[heading]:
            print_heading(heading)
            for line in report[heading]:
                click.echo(f"  {line}")
    _print_comparisons(report["comparisons"])
    peak = report["check_peak_bytes"]
    memory = "" if peak is None else f", {gib(peak)} in a process of its own"
    print_heading("time")
    print_pairs(
        [
            ("writing", f"{report['seconds_writing']:.2f} s"),
            ("checking", f"{report['seconds_checking']:.2f} s{memory}"),
        ],
        left=2,
    )


def _print_comparisons(comparisons: list[dict[str, Any]]) -> None:
    if not comparisons:
        return
    print_heading("differences from torch, and what they may be")
    rows = [
        (
            each["way"],
            str(each["batch"]),
            f"{each['max_abs']:.1e}",
            _limit(each["max_limit"]),
            f"{each['mean_abs']:.1e}",
            _limit(each["mean_limit"]),
            f"{each['relative']:.1e}",
        )
        for each in comparisons
    ]
    print_table(("tokens", "batch", "max", "allowed", "mean", "allowed", "max / largest output"), rows)


def folded(caches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Caches that differ only in their layer as one entry; its name has the layers in braces."""
    groups: dict[tuple[object, ...], list[str]] = {}
    first: dict[tuple[object, ...], dict[str, Any]] = {}
    for cache in caches:
        parts = cache["name"].split(".")
        layer = next((part for part in parts if part.isdigit()), "")
        pattern = ".".join("{}" if part == layer and layer else part for part in parts)
        key = (pattern, cache["dtype"], tuple(cache["shape"]))
        groups.setdefault(key, []).append(layer)
        first.setdefault(key, cache)
    return [
        {**first[key], "name": str(key[0]).replace("{}", _braced(layers) if len(layers) > 1 else layers[0])}
        for key, layers in groups.items()
    ]


def _braced(layers: list[str]) -> str:
    return "{" + ranges(sorted(int(layer) for layer in layers)) + "}"


def _limit(limit: float | None) -> str:
    return "-" if limit is None else f"{limit:.1e}"
