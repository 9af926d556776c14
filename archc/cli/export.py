"""``archc export``."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.export_options import quantization_options
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
    help="A safetensors file, a folder of shards, or a folder as transformers saves it. Default: random weights.",
)
@click.option(
    "--no-weights",
    is_flag=True,
    help="Write the graph alone: its weights have their places in model.onnx.data, which stays unwritten.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Write into a folder that holds something else than an export. Files of an export's names are replaced.",
)
@click.option(
    "--provider",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="Whose kernels the file is made for. A file for cuda runs on the CPU too, except in bf16.",
)
@dtype_option(
    "--dtype",
    text="dtype of weights, activations, keys and values: f32, f16 or bf16.",
    allowed=("float32", "float16", "bfloat16"),
    default="float16",
)
@click.option(
    "--io",
    type=click.Choice(["archc", "genai"]),
    default="archc",
    show_default=True,
    help="Inputs and caches as archc run binds them, or as onnxruntime-genai does, with a genai_config.json.",
)
@max_model_len_option
@click.option(
    "--batched-chunks",
    is_flag=True,
    help="Take several new tokens over a past at batch > 1 in one call, by Attention-24 instead of GroupQueryAttention.",
)
@click.option(
    "--sliding-window-cache",
    is_flag=True,
    help="Windows by GroupQueryAttention's rolling cache instead of a ring. It refuses ragged prompts.",
)
@quantization_options
@click.option("--prune-head", is_flag=True, help="Logits of each row's last token only, (batch, 1, vocab).")
@seed_option
@click.option(
    "--tokenizer",
    type=click.Path(exists=True),
    metavar="FILE|DIR",
    help="A tokenizer.json to put beside the model, or a folder with one. Default: the spec's.",
)
@click.option("--no-check", is_flag=True, help="Do not run the written file.")
@click.option(
    "--check-provider",
    type=click.Choice(["cuda", "cpu"]),
    help="Say where each node goes, and exit 1 if one leaves this provider; shape arithmetic may.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare the written file with torch on the same weights: prefill, a chunk, rows of two lengths, 32 decode steps.",
)
@set_option
@json_option
def command(
    spec: str,
    output: str,
    weights: str | None,
    dtype: str,
    tokenizer: str | None,
    quant_block_size: str,
    calibration: str | None,
    no_check: bool,
    verify: bool,
    overrides: tuple[str, ...],
    as_json: bool,
    **choices: Any,
) -> None:
    """A fused ONNX model of SPEC for onnxruntime, with its caches as inputs and outputs."""
    require_extra("onnx", ("onnx", "onnx_ir", "onnxruntime", "numpy", "ml_dtypes"), "archc export")
    if verify:
        require_extra("torch", ("torch",), "archc export --verify")
        if no_check:
            raise click.UsageError("--verify runs the written file, --no-check forbids it")
    from pathlib import Path

    from archc import registry
    from archc.cli.export_text import print_report
    from archc.cli.progress import progress_bar
    from archc.expansion import expand
    from archc.spec.resolved import resolved

    described = resolved(spec, overrides)
    graph = expand(described.spec)
    export = registry.load("exporter", "onnx")
    with progress_bar("exporting") as progress:
        report = export(
            graph,
            Path(output),
            dtype=dtype,
            weights=None if weights is None else Path(weights),
            spec=described,
            tokenizer=None if tokenizer is None else Path(tokenizer),
            check=not no_check,
            judge=_compare if verify else None,
            quant_block_size=int(quant_block_size),
            calibration=None if calibration is None else Path(calibration),
            progress=progress,
            **choices,
        )
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report.to_json())


def _compare(file: Any) -> Any:
    """The judge of --verify. Torch is imported when the file has been written."""
    from archc.testing.torch_judge import judge

    return judge(file)
