"""``archc report``."""

from __future__ import annotations

from pathlib import Path

import click

from archc.cli.options import LENGTH, POSITIVE, Command, dtype_option, json_option, print_json, set_option
from archc.cli.plan_options import RANKS
from archc.units import SPEC_DTYPES


@click.command("report", cls=Command)
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    "output",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    required=True,
    help="The page; one that is there is replaced.",
)
@click.option("--batch-size", type=POSITIVE, metavar="N", default=1, show_default=True, help="Sequences at once.")
@click.option(
    "--max-model-len",
    type=LENGTH,
    metavar="TOKENS",
    help="Length of a sequence, as in 4096 or 128k (131,072). Default: the fewest positions that a spec states, or 4096.",
)
@click.option(
    "--source-len",
    type=LENGTH,
    metavar="TOKENS",
    help="Tokens given to the encoder that a decoder reads. Default: the length.",
)
@dtype_option("--dtype", text="dtype of the weights. Default: each spec's.", allowed=SPEC_DTYPES)
@dtype_option("--kv-cache-dtype", text="dtype of the cache. Default: each spec's.", allowed=SPEC_DTYPES)
@click.option("--block-size", type=POSITIVE, metavar="TOKENS", help="Tokens a block of a paged cache.")
@click.option("--gpu", metavar="NAME", default="h200", show_default=True, help="Device of the catalogue, or none.")
@click.option(
    "--tp", type=RANKS, metavar="N", default=1, show_default=True, help="Ranks that share heads and channels."
)
@click.option("--pp", type=RANKS, metavar="N", default=1, show_default=True, help="Stages of consecutive layers.")
@set_option
@json_option
def command(
    specs: tuple[str, ...],
    output: Path,
    batch_size: int,
    max_model_len: int | None,
    source_len: int | None,
    dtype: str | None,
    kv_cache_dtype: str | None,
    block_size: int | None,
    gpu: str,
    tp: int,
    pp: int,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """One page about each SPEC (files or shipped names), to be sent to others: FILE.html needs nothing else and loads nothing.

    It has the drawing, tables and charts of each, side by side where there are several, and controls for what the other options
    set at first: batch, length, dtypes, device, ranks. Its numbers are those of archc estimate.

    Example: archc report kimi-linear-48b-a3b deepseek-v3 -o report.html
    """
    from archc.planning.parallel import Parallel
    from archc.reporting.report import report

    written = report(
        specs,
        output,
        batch_size=batch_size,
        max_model_len=max_model_len,
        source_len=source_len,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        gpu=None if gpu == "none" else gpu,
        parallel=Parallel(tp=tp, pp=pp),
        overrides=overrides,
    )
    if as_json:
        print_json({"file": str(written), "bytes": written.stat().st_size})
        return
    click.echo(f"wrote {written}")
