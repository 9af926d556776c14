"""``archc export``."""

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


@click.command("export", cls=Command)
@spec_argument
@click.option("-o", "--output", type=click.Path(file_okay=False), required=True, metavar="DIR", help="Where to write.")
@click.option(
    "--weights",
    type=click.Path(exists=True),
    metavar="FILE|DIR",
    help="A safetensors file, or a folder of shards. Default: random weights.",
)
@dtype_option(
    "--dtype",
    text="dtype of weights and caches: f32, f16 or bf16.",
    allowed=("float32", "float16", "bfloat16"),
    default="float16",
)
@max_model_len_option
@seed_option
@click.option("--no-check", is_flag=True, help="Do not run the written file.")
@set_option
@json_option
def command(
    spec: str,
    output: str,
    weights: str | None,
    dtype: str,
    max_model_len: int | None,
    seed: int,
    no_check: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """A fused ONNX model of SPEC for onnxruntime, with its caches as inputs and outputs."""
    require_extra("onnx", ("onnx", "onnx_ir", "onnxruntime", "numpy", "ml_dtypes"), "archc export")
    from pathlib import Path

    from archc import registry
    from archc.cli.export_text import print_report
    from archc.cli.files import require_disk
    from archc.cli.progress import progress_bar
    from archc.estimation.estimate import estimate
    from archc.expansion import expand
    from archc.spec.load import load_spec

    graph = expand(load_spec(spec, overrides))
    require_disk(Path(output), estimate(graph, dtype=dtype).weights.bytes)
    export = registry.load("exporter", "onnx")
    with progress_bar("writing") as progress:
        report = export(
            graph,
            Path(output),
            dtype=dtype,
            weights=None if weights is None else Path(weights),
            seed=seed,
            max_model_len=max_model_len,
            check=not no_check,
            progress=progress,
        )
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report.to_json())
