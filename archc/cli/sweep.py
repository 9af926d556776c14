"""``archc sweep``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from archc.cli.options import (
    LENGTHS,
    POSITIVE,
    Command,
    json_option,
    print_json,
    require_extra,
    spec_argument,
    stdout_is_terminal,
)
from archc.cli.outputs import OutputFile
from archc.cli.sweep_files import FORMATS, write_rows, write_text

if TYPE_CHECKING:
    from archc.planning.search.sweep import Progress, Sweep


@click.command("sweep", cls=Command)
@spec_argument
@click.option(
    "--vary",
    multiple=True,
    required=True,
    metavar="KEY=VALUES",
    help="Values of a key of the spec: 16,32 or 8..64..8 or 8..64..x2. Repeated, every combination is a variant.",
)
@click.option(
    "--at",
    "lengths",
    type=LENGTHS,
    metavar="LENGTHS",
    default="4k,128k",
    show_default=True,
    help="Tokens at which cache and FLOPs are given.",
)
@click.option("--batch-size", type=POSITIVE, metavar="N", default=1, show_default=True, help="Sequences at once.")
@click.option("--metrics", metavar="NAMES", help="Of parameters, weights, cache, flops. Default: all.")
@click.option(
    "--strict", is_flag=True, help="Stop at the first variant that is invalid, instead of giving its error in a row."
)
@click.option(
    "-o",
    "--output",
    type=OutputFile(FORMATS),
    metavar="FILE",
    help="Write .csv, .jsonl or .parquet instead of printing CSV.",
)
@click.option(
    "-s",
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a value of the spec in all variants. Can be repeated.",
)
@json_option
def command(
    spec: str,
    vary: tuple[str, ...],
    lengths: tuple[int, ...],
    batch_size: int,
    metrics: str | None,
    strict: bool,
    output: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Parameters, bytes and FLOPs of every combination of some keys' values: a row a variant, exactly, without torch.

    \b
    Example: archc sweep kimi-linear-48b-a3b --vary mixers.kda.num_heads=16,32 \\
        --vary 'stack.mixer="(kda*3 mla)* kda*2 mla","(kda*5 mla)* kda*2 mla"' -o sweep.csv
    """
    if output is not None and output.suffix.lower() == ".parquet":
        require_extra("parquet", ("pyarrow",), "a .parquet file")
    from archc.cli.progress import progress_bar
    from archc.planning.search.sweep import open_sweep
    from archc.planning.search.sweep_costs import METRICS

    names = tuple(METRICS) if metrics is None else tuple(name.strip() for name in metrics.split(","))
    found = open_sweep(spec, vary, at=lengths, batch_size=batch_size, overrides=overrides, metrics=names)
    start = perf_counter()
    rows = _Rows(found, strict=strict)
    # A bar among rows on one terminal would be in their way.
    is_shown = output is not None or as_json or not stdout_is_terminal()
    with progress_bar("sweep") if is_shown else nullcontext() as progress:
        if output is not None:
            write_rows(output, found.columns, rows.cells(progress))
        elif as_json:
            rows.kept += rows.cells(progress)
        else:
            write_text(sys.stdout, ".csv", found.columns, rows.cells(progress))
    seconds = perf_counter() - start
    summary: dict[str, Any] = {
        "num_variants": len(found),
        "num_invalid": rows.num_invalid,
        "num_expanded": found.num_expanded,
        "elapsed_s": round(seconds, 3),
    }
    if as_json:
        data = {"lengths_tokens": list(lengths), **summary}
        if output is not None:
            data["output"] = str(output)
        else:
            data["variants"] = [dict(zip(found.columns, row, strict=True)) for row in rows.kept]
        print_json(data)
    _report(found, rows, output, seconds)


class _Rows:
    """The rows of a sweep as they come, counted."""

    def __init__(self, sweep: Sweep, *, strict: bool) -> None:
        self.sweep, self.strict = sweep, strict
        self.num_invalid = 0
        self.first_error = ""
        self.kept: list[Sequence[Any]] = []

    def cells(self, progress: Progress | None) -> Iterator[Sequence[Any]]:
        for variant in self.sweep.variants(strict=self.strict, progress=progress):
            if variant.error:
                self.num_invalid += 1
                self.first_error = self.first_error or variant.error
            yield variant.cells


def _report(sweep: Sweep, rows: _Rows, output: Path | None, seconds: float) -> None:
    """What was done, on stderr where variants go to stdout; a sweep of which nothing is valid was asked wrongly."""
    from archc.errors import ArchcError

    total = len(sweep)
    if rows.num_invalid == total:
        raise ArchcError(f"none of the {total:,} variants is valid; the first: {rows.first_error}")
    where = "" if output is None else f"wrote {output}: "
    invalid = f", {rows.num_invalid:,} invalid (column error)" if rows.num_invalid else ""
    rate = f" in {seconds:.1f} s" if seconds >= 0.1 else ""
    click.echo(f"{where}{total:,} variants{invalid}{rate}", err=output is None)
