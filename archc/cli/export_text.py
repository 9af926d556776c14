"""An exporter's report for people."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.placement_text import print_placement
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
    print_heading(
        f"caches (capacity = {report['capacity']}; positions up to max_model_len {report['max_model_len']:,})"
    )
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
    _print_quantization(report["quantization"], report["quality"])
    for heading in ("checks", "notes"):
        if report[heading]:
            print_heading(heading)
            for line in report[heading]:
                click.echo(f"  {line}")
    _print_comparisons(report["comparisons"])
    if report["placement"] is not None:
        print_placement(report["placement"])
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


def _print_quantization(found: dict[str, Any] | None, quality: dict[str, Any] | str) -> None:
    if found is not None:
        zero = "symmetric" if found["symmetric"] else "with zero points"
        print_heading(f"weights of {found['bits']} bits, blocks of {found['block_size']}, {zero}")
        click.echo(f"  {', '.join(f'{count} {op}' for op, count in found['nodes'].items())}")
        before, after, kept = (found[key] for key in ("float_bytes", "quantized_bytes", "kept_bytes"))
        click.echo(f"  {before:,} B became {after:,} B; {kept:,} B are what they were")
        if found["int8_activations"]:
            click.echo("  the CPU's kernels round activations to 8 bits as well")
        for reason, names in found["kept"].items():
            click.echo(f"  {len(names)} x float, as {names[0]}: {reason}")
    if quality:
        if found is None:
            print_heading("rounded caches")
        click.echo(f"  {quality if isinstance(quality, str) else _loss(quality)}")


def _loss(loss: dict[str, Any]) -> str:
    return (
        f"logits of {loss['tokens']} random tokens are off by {loss['max_error']:.3g} at most, {loss['mean_error']:.3g} in "
        f"the mean, {loss['relative_rms']:.2%} rms of their spread; {loss['top1_agreement']:.0%} keep their first choice "
        f"({loss['measured_on']})"
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
