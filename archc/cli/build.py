"""``archc build``."""

from __future__ import annotations

import click

from archc.cli.options import (
    Command,
    dtype_option,
    json_option,
    max_model_len_option,
    print_json,
    require_extra,
    seed_option,
    set_option,
    spec_argument,
)


@click.command("build", cls=Command)
@spec_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write model.safetensors, spec.yaml and graph.json there.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "meta", "cuda"]),
    help="Where the weights are. Default: meta, which allocates nothing; with -o, cpu.",
)
@dtype_option(
    "--dtype",
    text="dtype of the weights. Default: the spec's.",
    allowed=("float32", "bfloat16", "float16", "float64"),
)
@max_model_len_option
@seed_option
@set_option
@json_option
def command(
    spec: str,
    output: str | None,
    device: str | None,
    dtype: str | None,
    max_model_len: int | None,
    seed: int,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """A PyTorch model of SPEC, its parameters and cache checked against the estimate; with -o, its files."""
    require_extra("torch", ("torch", "numpy", "safetensors"), "archc build")
    if output is not None and device == "meta":
        raise click.UsageError("the meta device holds no weights to write; leave out -o or choose --device cpu")
    from archc.cli.build_model import build_model, print_built

    built = build_model(
        spec,
        overrides,
        output=output,
        device=device or ("meta" if output is None else "cpu"),
        dtype=dtype,
        max_model_len=max_model_len,
        seed=seed,
    )
    if as_json:
        print_json(built.to_json())
    else:
        print_built(built)
    built.check()
