"""``archc convert``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from archc.cli.options import Command, dtype_option, json_option, print_json, require_extra

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_LEAST_BYTES, _MOST_BYTES = 1, 1 << 60


def _bytes(context: click.Context, parameter: click.Parameter, text: str) -> int:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise click.BadParameter(f"{text!r} is no size; write it as in 5GB, 500MB or 2GiB")
    size = int(float(found[1]) * _UNITS[found[2].upper()])
    if not _LEAST_BYTES <= size <= _MOST_BYTES:
        raise click.BadParameter(f"{text!r} is no size of a file")
    return size


@click.command("convert", cls=Command)
@click.argument("source", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("-o", "--output", type=click.Path(), required=True, metavar="DIR", help="Where to write.")
@click.option(
    "--to",
    "form",
    type=click.Choice(["archc", "hf"]),
    default="archc",
    show_default=True,
    help="archc's names and a spec.yaml, or back to the names and the config.json that they came from.",
)
@click.option(
    "--allow-unused",
    multiple=True,
    metavar="PATTERN",
    help="Leave out tensors of these names, as in 'vision_tower.*'. Can be repeated.",
)
@click.option(
    "--max-shard-size",
    "shard_bytes",
    callback=_bytes,
    default="5GB",
    show_default=True,
    metavar="SIZE",
    help="Largest file of weights; a tensor larger than that has a file of its own.",
)
@click.option("--name", metavar="NAME", help="Name of the spec. Default: that of the folder.")
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="Of a run: the checkpoint to take. Default: the newest."
)
@dtype_option(
    "--dtype",
    text="Of a run: dtype of the weights. Default: float32, as they are trained.",
    allowed=("float32", "bfloat16", "float16", "float64"),
)
@json_option
def command(
    source: str,
    output: str,
    form: str,
    allow_unused: tuple[str, ...],
    shard_bytes: int,
    name: str | None,
    step: int | None,
    dtype: str | None,
    as_json: bool,
) -> None:
    """The weights of a checkpoint folder under archc's names, beside their spec, and back; every bit is kept.

    DIR may also be a run of archc train: its weights at a checkpoint become a folder as archc build writes one.
    """
    require_extra("torch", ("numpy", "safetensors", "ml_dtypes"), "archc convert")
    if any((Path(source) / file).is_file() for file in ("run.json", "manifest.json")):
        if form == "hf" or allow_unused or name is not None:
            raise click.UsageError(
                "--to hf, --allow-unused and --name are for checkpoints of others, and DIR is a run's"
            )
        _print(_of_run(Path(source), Path(output), step, dtype), output, as_json=as_json)
        return
    if step is not None or dtype is not None:
        raise click.UsageError("--step and --dtype are for what archc train wrote; other weights are kept as they are")
    if form == "hf" and (allow_unused or name is not None):
        raise click.UsageError("--allow-unused and --name are for the way to archc")
    from archc.checkpoint.convert import to_archc, to_hf
    from archc.checkpoint.opening import import_folder
    from archc.checkpoint.staging import ORIGIN
    from archc.cli.progress import progress_bar
    from archc.errors import ArchcError

    place, out = Path(source), Path(output)
    with progress_bar("converting") as progress:
        if form == "archc" and (place / ORIGIN).is_file():
            raise ArchcError(f"{place} was written by archc convert; --to hf is the way back from it")
        if form == "archc":
            imported = import_folder(place, name=name)
            done = to_archc(place, out, imported, allow_unused=allow_unused, shard_bytes=shard_bytes, progress=progress)
        else:
            done = to_hf(place, out, shard_bytes=shard_bytes, progress=progress)
    _print(done, output, as_json=as_json)
    if done.left_out and not as_json:
        click.echo(f"{len(done.left_out):,} tensors were left out: {_some(done.left_out)}")


def _of_run(source: Path, output: Path, step: int | None, dtype: str | None) -> Any:
    require_extra("torch", ("torch",), "archc convert of a run")
    from archc.cli.progress import progress_bar
    from archc.training.run_weights import export_weights

    with progress_bar("converting") as progress:
        return export_weights(source, output, step=step, dtype=dtype or "float32", progress=progress)


def _print(done: Any, output: str, *, as_json: bool) -> None:
    if as_json:
        print_json(done.to_json())
        return
    from archc.units import gib

    click.echo(f"{done.weights:,} weights, {done.tensors:,} tensors, {gib(done.weight_bytes)} in {output}")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
