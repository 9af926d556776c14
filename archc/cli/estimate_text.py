"""An estimate for people: bytes and GiB both, one line a layer kind, conventions at the end."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.table import print_heading, print_pairs, print_table, print_wrapped
from archc.estimation.conventions import CONVENTIONS
from archc.estimation.estimate import Estimate
from archc.units import gib, si

STEPS = {
    "forward": "forward",
    "prefill": "prefill",
    "decode": "decode, one token",
    "train_step": "training step",
}


def print_estimate(found: Estimate) -> None:
    """The whole estimate on stdout."""
    cache_dtype = f", cache {found.kv_cache_dtype}" if found.kv_cache_dtype else ""
    source = f" after {found.source_len:,} of the encoder" if found.source_len else ""
    click.secho(found.name, bold=True, nl=False)
    click.echo(f": {found.dtype}{cache_dtype}, batch {found.batch_size}, length {found.max_model_len:,} tokens{source}")
    _print_parameters(found)
    _print_layers(found)
    _print_cache(found)
    _print_flops(found)
    print_heading("conventions")
    for topic, text in CONVENTIONS.items():
        print_wrapped(f"{topic}: {text}")


def _print_parameters(found: Estimate) -> None:
    counts = found.parameters
    print_heading("parameters")
    rows = [
        _count("total", counts.total),
        _count("active a token", counts.active),
        _count("embedding", counts.embedding),
        _count("non-embedding", counts.non_embedding),
    ]
    if counts.mtp:
        rows.append(_count("mtp layers, apart", counts.mtp))
    if counts.untrainable:
        rows.append(_count("untrainable, apart", counts.untrainable))
    print_pairs(rows)
    print_heading("parameters by part")
    print_pairs([(*_count(".".join(part), n), f"{n / counts.total:.2%}") for part, n in counts.by_part.items()])
    print_heading("weights")
    rows = [_bytes(dtype, n) for dtype, n in found.weights.by_dtype.items()]
    if len(rows) > 1:
        rows.append(_bytes("total", found.weights.bytes))
    if found.weights.mtp_bytes:
        rows.append(_bytes("mtp layers, apart", found.weights.mtp_bytes))
    print_pairs(rows)


def _print_layers(found: Estimate) -> None:
    print_heading("layers, by kind (window in tokens, state of one sequence)")
    steps = [step for step in ("forward", "prefill", "decode") if step in found.flops.numbers]
    columns = (
        "kind",
        "layers",
        "parameters",
        "active",
        *(("cache B/token", "window", "state B/seq") if "decode" in steps else ()),
        *(("source B/token",) if found.source_len else ()),
        *(f"{step} FLOPs" for step in steps),
    )
    rows: list[tuple[str, ...]] = []
    data: dict[str, Any]
    for data in found.to_json()["layers"]:
        flops = data["flops"]
        rows.append(
            (
                data["name"],
                str(data["layers"]),
                si(data["parameters"]),
                si(data["active_parameters"]),
                *(_cached(data) if "decode" in steps else ()),
                *((f"{data['bytes_per_source_token']:,}",) if found.source_len else ()),
                *(si(flops.get(step, 0)) for step in steps),
            )
        )
    print_table(columns, rows)


def _cached(data: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{data['bytes_per_token_below_windows']:,}",
        "-" if data["window_tokens"] is None else f"{data['window_tokens']:,}",
        f"{data['state_bytes_per_sequence']:,}",
    )


def _print_cache(found: Estimate) -> None:
    cache = found.cache
    if "decode" not in found.flops.numbers:
        print_heading("cache")
        click.echo("  none: a bidirectional stack sees its whole text in every call and keeps nothing")
        return
    print_heading("cache, by mixer (bytes of the whole batch where not said otherwise)")
    columns = ("mixer", "policy", "layers", "B/token", "window", "state B/seq", "used", "allocated", "paged")
    rows: list[tuple[str, ...]] = []
    for kind in cache.by_kind:
        state_bytes = kind.recurrent_bytes_per_sequence + kind.convolution_bytes_per_sequence
        rows.append(
            (
                kind.name,
                kind.policy or "-",
                str(kind.layers),
                f"{kind.bytes_per_token_below_windows:,}",
                "-" if kind.window is None else f"{kind.window:,}",
                f"{state_bytes:,}",
                gib(kind.used_bytes),
                gib(kind.allocated_bytes),
                gib(kind.paged_bytes),
            )
        )
    if rows:
        print_table(columns, rows, left=2)
    below = cache.total("bytes_per_token_below_windows")
    pairs = [_bytes("growth per token and sequence", cache.bytes_per_token)]
    if below != cache.bytes_per_token:
        pairs.append(_bytes("  while every window fills", below))
    recurrent, convolution = cache.total("recurrent_bytes_per_sequence"), cache.total("convolution_bytes_per_sequence")
    if source := cache.total("bytes_per_source_token"):
        pairs.append(_bytes("per token of the encoder and sequence", source))
    if recurrent or convolution:
        pairs.append(_bytes("recurrent states per sequence", recurrent))
        pairs.append(_bytes("convolution states per sequence", convolution))
    pairs.append(_bytes("used", cache.used_bytes))
    pairs.append(_bytes(f"allocated ({cache.capacity_rows:,} rows)", cache.allocated_bytes))
    sizes = dict.fromkeys(kind.block_size_tokens for kind in cache.by_kind if kind.bytes_per_token_below_windows)
    blocks = f" (blocks of {', '.join(map(str, sizes))} tokens)" if sizes else ""
    pairs.append(_bytes(f"paged{blocks}", cache.paged_bytes))
    print_pairs(pairs)
    click.echo(f"  used bytes = {cache.formula}")


def _print_flops(found: Estimate) -> None:
    print_heading("FLOPs")
    numbers = found.flops.numbers
    print_table(
        ("", "needed pairs", "", "dense pairs", ""),
        [
            (
                label,
                f"{numbers[step]:,}",
                si(numbers[step]),
                f"{numbers[f'{step}_dense']:,}",
                si(numbers[f"{step}_dense"]),
            )
            for step, label in STEPS.items()
            if step in numbers
        ],
    )
    for step in (step for step in STEPS if step in numbers):
        text = f"{step} = {found.flops.formulas[step]}"
        print_wrapped(text)


def _count(label: str, number: int) -> tuple[str, ...]:
    return (label, f"{number:,}", si(number))


def _bytes(label: str, number: int) -> tuple[str, ...]:
    return (label, f"{number:,} B", gib(number))
