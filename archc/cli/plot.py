"""``archc plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from archc.cli.options import (
    LENGTHS,
    Command,
    json_option,
    print_json,
    require_extra,
    set_option,
)
from archc.cli.outputs import PICTURES, OutputFile
from archc.cli.time_options import cost_options


@click.command("plot", cls=Command)
@click.argument("specs", metavar="SPEC|RUN...", nargs=-1, required=True)
@click.option(
    "--what",
    "what",
    multiple=True,
    default=("all",),
    metavar="CHART",
    help="cache, flops, parameters, roofline (with --gpu) or all; of runs loss, lr, grad_norm, tokens_per_s or all. Can be "
    "repeated. Default: all.",
)
@click.option(
    "-o",
    "--output",
    "output",
    type=OutputFile(PICTURES),
    metavar="FILE",
    help="The picture: .png, .svg or .pdf. Without it only --json says something.",
)
@click.option(
    "--at",
    "lengths",
    type=LENGTHS,
    metavar="LENGTHS",
    help="Least and greatest length of curves in tokens, as in 1k,1M; a single one is marked. Default: 1k,1M.",
)
@cost_options
@set_option
@json_option
def command(
    specs: tuple[str, ...],
    what: tuple[str, ...],
    output: Path | None,
    lengths: tuple[int, ...] | None,
    overrides: tuple[str, ...],
    as_json: bool,
    **stated: Any,
) -> None:
    """Charts of one or several specs (files or shipped names): cache and FLOPs over the length, parameters by part, rooflines.

    Of folders that archc train wrote: loss, learning rate, gradient norm and tokens a second over the steps.

    Example: archc plot kimi-linear-48b-a3b deepseek-v3 --what cache -o cache.svg
    """
    if output is None and not as_json:
        raise click.UsageError("-o FILE says where the picture goes; --json prints its numbers")
    if output is not None:
        require_extra("plot", ("matplotlib",), "a chart")
    from archc.plotting.plot import plot

    found = plot(
        specs,
        what=what,
        at=lengths,
        overrides=overrides,
        **stated,
    )
    if output is not None:
        from archc.cli.files import write_atomically

        write_atomically(output, found.picture(output.suffix.lower()))
    if as_json:
        print_json({**found.to_json(), "output": None if output is None else str(output)})
    else:
        click.echo(f"wrote {output}")
