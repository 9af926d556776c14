"""``archc run``."""

from __future__ import annotations

import click

from archc.cli.options import (
    Command,
    json_option,
    max_model_len_option,
    provider_option,
    require_extra,
    threads_option,
)
from archc.cli.writing_options import chunk_size_option, drawing_options, ids_option, prompt_options


@click.command("run", cls=Command)
@click.argument("folder", metavar="DIR")
@prompt_options
@drawing_options
@provider_option
@threads_option
@chunk_size_option
@max_model_len_option
@ids_option
@json_option
def command(
    folder: str,
    texts: tuple[str, ...],
    ids: tuple[str, ...],
    files: tuple[str, ...],
    max_new_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    seed: int,
    stop_ids: tuple[int, ...] | None,
    batch_size: int | None,
    provider: str | None,
    threads: int,
    chunk_size: int,
    max_model_len: int | None,
    as_ids: bool,
    as_json: bool,
) -> None:
    """Continue prompts with the model in DIR, a folder that archc export wrote. Text goes to stdout as it comes.

    A decoder with an encoder answers the prompts. An encoder reads them: what fills a masked token, the scores of classes, or
    what its outputs are like. One of pictures takes a --prompt-file of numpy's, pixels.npy (channels, height, width).
    """
    require_extra("onnx", ("onnxruntime", "numpy", "ml_dtypes"), "archc run")
    from archc.cli.writing import Output, read_prompts, write
    from archc.runtime import load

    model = load(folder, provider=provider, threads=threads)
    made_for = model.contract.target.provider
    if provider is None and model.provider != made_for:
        click.echo(
            f"archc: runs on {model.provider}; the file was made for {made_for}, and no device is found", err=True
        )
    if model.contract.mask == "bidirectional":
        from archc.cli.reading import read

        read(model, texts, ids, files, as_json=as_json)
        return
    prompts = read_prompts(texts, ids, files)
    write(
        model.generate,
        prompts,
        {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
            "stop_ids": stop_ids,
            "chunk_size": chunk_size,
            "max_model_len": max_model_len,
        },
        batch_size=batch_size,
        output=Output.JSON if as_json else Output.IDS if as_ids or model.text is None else Output.TEXT,
        told={"name": model.contract.name, "provider": model.provider},
    )
