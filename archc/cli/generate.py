"""``archc generate``."""

from __future__ import annotations

import click

from archc.cli.options import Command, dtype_option, json_option, require_extra, set_option
from archc.cli.writing_options import chunk_size_option, decoder_ids_option, drawing_options, ids_option, prompt_options


@click.command("generate", cls=Command)
@click.argument("source", metavar="SPEC|DIR")
@prompt_options
@click.option(
    "--weights",
    type=click.Path(exists=True),
    metavar="PATH",
    help="A safetensors file, or a folder of shards. Default: those in DIR; for a SPEC, random weights.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True),
    metavar="PATH",
    help="A tokenizer.json, or a folder with one. Default: that of DIR or SPEC.",
)
@decoder_ids_option
@drawing_options
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="Where it runs. Default: cuda where there is one, else cpu."
)
@dtype_option(
    "--dtype",
    text="dtype of weights and activations. Default: the spec's.",
    allowed=("float32", "bfloat16", "float16", "float64"),
)
@chunk_size_option
@ids_option
@set_option
@json_option
def command(
    source: str,
    texts: tuple[str, ...],
    ids: tuple[str, ...],
    files: tuple[str, ...],
    weights: str | None,
    tokenizer: str | None,
    decoder_ids: tuple[int, ...] | None,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    seed: int,
    stop_ids: tuple[int, ...] | None,
    batch_size: int | None,
    device: str | None,
    dtype: str | None,
    chunk_size: int,
    as_ids: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Continue prompts on torch, with a SPEC, or with the model in DIR. Text goes to stdout as it comes.

    A model with an encoder and a decoder reads a prompt with the one and answers with the other.

    DIR is a folder that archc build or archc convert wrote, or a Hugging Face checkpoint (config.json and safetensors).
    """
    require_extra("torch", ("torch", "numpy", "safetensors"), "archc generate")
    from archc.cli.generate_model import opened
    from archc.cli.writing import Output, read_prompts, write

    prompts = read_prompts(texts, ids, files)
    model = opened(
        source,
        overrides,
        weights=weights,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        needs_text=any(isinstance(prompt, str) for prompt in prompts),
    )
    write(
        model.generate,
        prompts,
        {
            "decoder_ids": decoder_ids,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
            "stop_ids": model.stop_ids if stop_ids is None else stop_ids,
            "chunk_size": chunk_size,
        },
        batch_size=batch_size,
        output=Output.JSON if as_json else Output.IDS if as_ids or model.text is None else Output.TEXT,
        told={"name": model.name, "device": model.device, "dtype": model.dtype},
    )
