"""``archc bench``."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.options import (
    POSITIVE,
    Command,
    json_option,
    print_json,
    provider_option,
    require_extra,
    threads_option,
)


@click.command("bench", cls=Command)
@click.argument("folder", metavar="DIR")
@click.option("--prompt-tokens", type=POSITIVE, metavar="N", default=512, show_default=True, help="Tokens of a prompt.")
@click.option("--new-tokens", type=POSITIVE, metavar="N", default=64, show_default=True, help="Decode steps.")
@click.option("--batch-size", type=POSITIVE, metavar="N", default=1, show_default=True, help="Sequences at once.")
@click.option("--rounds", type=POSITIVE, metavar="N", default=5, show_default=True, help="Rounds that count.")
@click.option(
    "--chunk-size",
    type=POSITIVE,
    metavar="TOKENS",
    default=512,
    show_default=True,
    help="Tokens of a prompt at a time.",
)
@provider_option
@threads_option
@json_option
def command(folder: str, provider: str | None, threads: int, as_json: bool, **sizes: int) -> None:
    """Prefill and decode tokens a second of the model in DIR, and the bound that memory bandwidth sets to decode.

    Of an encoder, tokens a second in passes over --prompt-tokens of them; of one of pictures, pictures a second.
    """
    require_extra("onnx", ("onnx", "onnxruntime", "numpy", "ml_dtypes"), "archc bench")
    from archc import registry
    from archc.cli.progress import progress_bar

    bench = registry.load("runtime", "bench")
    with progress_bar("bench") as progress:
        found = bench(folder, provider=provider, threads=threads, progress=progress, **sizes).to_json()
    if as_json:
        print_json(found)
    elif "forward" in found:
        _print_encoder(found)
    else:
        _print(found)


def _print_encoder(found: dict[str, Any]) -> None:
    from archc.cli.table import print_heading, print_table

    _print_place(found)
    print_heading(f"{found['unit']} a second, {found['rounds']} rounds")
    label = f"passes over {found['tokens']:,} tokens a row" if found["tokens"] else "passes"
    rates = (f"{found['forward'][column]:,.1f}" for column in ("median", "slowest", "fastest"))
    print_table(("", "median", "slowest", "fastest"), [(label, *rates)])


def _print_place(found: dict[str, Any]) -> None:
    threads = f"{found['threads']} threads" if found["threads"] else "onnxruntime's number of threads"
    click.secho(found["name"], bold=True, nl=False)
    click.echo(f": {found['dtype']} on {found['provider']}, {threads}, batch {found['batch_size']}")


def _print(found: dict[str, Any]) -> None:
    from archc.cli.table import print_heading, print_pairs, print_table
    from archc.units import gib

    _print_place(found)
    print_heading(f"tokens a second, {found['rounds']} rounds")
    rows = [
        (f"{label} of {tokens}", *(f"{found[label][column]:,.1f}" for column in ("median", "slowest", "fastest")))
        for label, tokens in (("prefill", found["prompt_tokens"]), ("decode", found["new_tokens"]))
    ]
    print_table(("", "median", "slowest", "fastest"), rows)
    print_heading("decode and memory")
    print_pairs(
        [
            ("weights a step", gib(found["weight_bytes_a_step"])),
            ("caches a step", gib(found["cache_bytes_a_step"])),
            ("bandwidth, best of the rounds", f"{found['bandwidth_bytes_per_second'] / 1e9:,.1f} GB/s"),
            ("bound", f"{found['bound_tokens_per_second']:,.1f} tok/s"),
            ("reached", f"{found['share_of_bound']:.0%}"),
        ]
    )
    click.echo(f"  counted: {found['counted']}")
