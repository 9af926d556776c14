"""``archc fit``."""

from __future__ import annotations

from pathlib import Path

import click

from archc.cli.options import (
    BYTES,
    COUNT,
    LENGTH,
    POSITIVE,
    Command,
    json_option,
    print_json,
    spec_argument,
)
from archc.cli.outputs import OutputFile


@click.command("fit", cls=Command)
@spec_argument
@click.option(
    "--free",
    multiple=True,
    required=True,
    metavar="KEY=RANGE",
    help="A key to solve for and what it may be: 12..96..4, 8..64..x2, 16,24,32 or multiple_of:128. Can be repeated.",
)
@click.option("--params", type=COUNT, metavar="N", help="Come close to so many parameters, as in 7e9 or 7B.")
@click.option("--active-params", type=COUNT, metavar="N", help="Come close to so many active parameters a token.")
@click.option(
    "--cache-at",
    type=(LENGTH, BYTES),
    metavar="LENGTH BYTES",
    help="Stay within so many bytes of cache at a length, as in 128k 2GiB.",
)
@click.option(
    "--memory",
    metavar="GPU|BYTES",
    help="Stay with weights and cache within a device's memory, or within bytes.",
)
@click.option(
    "--max-model-len",
    type=LENGTH,
    metavar="TOKENS",
    help="Length of the cache for --memory. Default: the spec's max_position_embeddings, or 4096.",
)
@click.option("--batch-size", type=POSITIVE, metavar="N", default=1, show_default=True, help="Sequences at once.")
@click.option(
    "--within",
    "within_percent",
    type=click.FloatRange(0, 99),
    metavar="PERCENT",
    default=5.0,
    show_default=True,
    help="How far from --params and --active-params a solution may be.",
)
@click.option(
    "-o", "--output", type=OutputFile((".yaml", ".yml")), metavar="FILE", help="Write the solution as a spec."
)
@click.option("--overwrite", is_flag=True, help="Replace a file that holds something else.")
@click.option(
    "-s",
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a value of the spec before it is fitted. Can be repeated.",
)
@json_option
def command(
    spec: str,
    free: tuple[str, ...],
    params: int | None,
    active_params: int | None,
    cache_at: tuple[int, int] | None,
    memory: str | None,
    max_model_len: int | None,
    batch_size: int,
    within_percent: float,
    output: Path | None,
    overwrite: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Values of free keys at which SPEC comes to a number of parameters, or fills a cache or a device.

    \b
    Example: archc fit llama-3-8b --params 7B --free hidden_size=multiple_of:128 \\
        --free stack.num_layers=16..48 -o seven.yaml
    """
    from archc.cli.progress import progress_bar
    from archc.planning.search.fit import fit

    with progress_bar("fit") as progress:
        found = fit(
            spec,
            free,
            params=params,
            active_params=active_params,
            cache_at=cache_at,
            memory=memory,
            max_model_len=max_model_len,
            batch_size=batch_size,
            overrides=overrides,
            within=within_percent / 100,
            progress=progress,
        )
    if output is not None:
        from archc.cli.files import write_new

        write_new(output, found.spec_text(output.stem), overwrite=overwrite)
        click.echo(f"wrote {output}", err=True)
    if as_json:
        print_json(found.to_json())
        return
    from archc.cli.fit_text import print_fit

    print_fit(found)
