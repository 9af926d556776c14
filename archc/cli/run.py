"""``archc run``."""

from __future__ import annotations

import click

from archc.cli.options import (
    POSITIVE,
    Command,
    json_option,
    max_model_len_option,
    provider_option,
    require_extra,
    threads_option,
)


@click.command("run", cls=Command)
@click.argument("folder", metavar="DIR")
@click.option("--prompt", "texts", multiple=True, metavar="TEXT", help="A prompt. Can be repeated.")
@click.option("--prompt-ids", "ids", multiple=True, metavar="1,2,3", help="A prompt as ids. Can be repeated.")
@click.option(
    "--prompt-file",
    "files",
    multiple=True,
    metavar="FILE",
    help="A file that is one prompt, - for stdin. Can be repeated.",
)
@click.option("--max-new-tokens", type=POSITIVE, metavar="N", help="Tokens to generate a prompt. Default: 128.")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    metavar="T",
    default=0.0,
    show_default=True,
    help="Divides the logits; 0 takes the likeliest.",
)
@click.option(
    "--top-k", type=click.IntRange(min=0), metavar="K", default=0, show_default=True, help="Keep so many ids; 0: all."
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="P",
    default=1.0,
    show_default=True,
    help="Keep the likeliest ids that together have this probability.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draws.")
@click.option("--batch-size", type=POSITIVE, metavar="N", help="Prompts at once. Default: all.")
@provider_option
@threads_option
@click.option(
    "--chunk-size",
    type=POSITIVE,
    metavar="TOKENS",
    default=512,
    show_default=True,
    help="Tokens of a prompt at a time.",
)
@max_model_len_option
@click.option("--ids", "as_ids", is_flag=True, help="Print ids even where there is a tokenizer.")
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
    seed: int,
    batch_size: int | None,
    provider: str | None,
    threads: int,
    chunk_size: int,
    max_model_len: int | None,
    as_ids: bool,
    as_json: bool,
) -> None:
    """Continue prompts with the model in DIR, a folder that archc export wrote. Text goes to stdout as it comes."""
    require_extra("onnx", ("onnxruntime", "numpy", "ml_dtypes"), "archc run")
    from archc.cli.run_model import Output, read_prompts, run_model

    run_model(
        folder,
        read_prompts(texts, ids, files),
        {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
            "chunk_size": chunk_size,
            "max_model_len": max_model_len,
        },
        batch_size=batch_size,
        provider=provider,
        threads=threads,
        output=Output.JSON if as_json else Output.IDS if as_ids else Output.TEXT,
    )
