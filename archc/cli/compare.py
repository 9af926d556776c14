"""``archc compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from archc.planning.comparison.compare import Comparison

_TABLES = (".csv", ".md", ".json")


@click.command("compare", cls=Command)
@click.argument("specs", metavar="SPEC...", nargs=-1, required=True)
@click.option(
    "--at",
    "lengths",
    type=LENGTHS,
    metavar="LENGTHS",
    help="Tokens at which costs are compared, as in 4k,128k,1M. Default: the least context length of the specs, or 4096.",
)
@cost_options
@click.option(
    "-o",
    "--output",
    "--plot",
    "outputs",
    type=OutputFile((*_TABLES, *PICTURES)),
    multiple=True,
    metavar="FILE",
    help="Write the table (.csv, .md, .json) or charts (.png, .svg, .pdf) instead of printing it. Can be repeated.",
)
@set_option
@json_option
def command(
    specs: tuple[str, ...],
    lengths: tuple[int, ...] | None,
    outputs: tuple[Path, ...],
    overrides: tuple[str, ...],
    as_json: bool,
    **stated: Any,
) -> None:
    """Parameters, weights, caches and FLOPs of several specs (files or shipped names) side by side.

    Example: archc compare deepseek-v3 kimi-linear-48b-a3b llama-3-70b --at 4k,128k,1M
    """
    if any(path.suffix.lower() in PICTURES for path in outputs):
        require_extra("plot", ("matplotlib",), "a chart")
    from archc.planning.comparison.compare import compare

    options: dict[str, Any] = {"overrides": overrides, **stated}
    found = compare(specs, at=lengths, **options)
    for path in outputs:
        _write(path, found, specs, options)
    if as_json:
        print_json(found.to_json())
    elif outputs:
        for path in outputs:
            click.echo(f"wrote {path}")
    else:
        from archc.cli.compare_text import print_comparison

        print_comparison(found)


def _write(path: Path, found: Comparison, specs: tuple[str, ...], options: dict[str, Any]) -> None:
    from archc.cli.files import write_atomically

    ending = path.suffix.lower()
    if ending in PICTURES:
        from archc.plotting.plot import plot

        write_atomically(path, plot(specs, at=found.lengths, **options).picture(ending))
    elif ending == ".csv":
        write_atomically(path, found.to_csv())
    elif ending == ".md":
        from archc.cli.compare_text import markdown

        write_atomically(path, markdown(found))
    else:
        import json

        write_atomically(path, json.dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n")
