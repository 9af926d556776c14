"""``archc attention``."""

from __future__ import annotations

import re
from pathlib import Path

import click

from archc.cli.options import Command, json_option, require_extra, seed_option, set_option
from archc.cli.outputs import OutputFile

_LAYER = re.compile(r"(?:(?P<stack>encoder|decoder)\.)?(?P<number>[0-9]{1,6})")
_PICTURE = OutputFile((".png", ".svg", ".html"))


def _layer(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str | None, int] | None:
    if value is None:
        return None
    match = _LAYER.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no layer; layers are written as 3, encoder.3 or decoder.3")
    return match["stack"], int(match["number"])


@click.command("attention", cls=Command)
@click.argument("source", metavar="SPEC|DIR")
@click.option(
    "--text",
    metavar="TEXT",
    help="What is read, by an encoder where there is one. Random weights without tokenizer read its bytes.",
)
@click.option("--ids", "ids", metavar="1,2,3", help="The same as ids.")
@click.option("--decoder-text", metavar="TEXT", help="What a decoder that reads an encoder has written.")
@click.option("--decoder-ids", metavar="1,2,3", help="The same as ids.")
@click.option(
    "--prefix-length",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="First tokens that a prefix LM lets see each other.",
)
@click.option(
    "--layer",
    "layer",
    callback=_layer,
    metavar="N",
    help="One layer, as in 3, encoder.3 or decoder.3. Default: all, each as the mean of its heads.",
)
@click.option("--head", type=click.IntRange(min=0), metavar="M", help="One head of the layer. Default: all, in a grid.")
@click.option(
    "-o",
    "--output",
    "output",
    type=_PICTURE,
    metavar="FILE",
    help="A picture: .png, .svg, or .html with the table.",
)
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
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="Where it runs. Default: cuda where there is one, else cpu."
)
@seed_option
@set_option
@json_option
def command(
    source: str,
    text: str | None,
    ids: str | None,
    decoder_text: str | None,
    decoder_ids: str | None,
    prefix_length: int,
    layer: tuple[str | None, int] | None,
    head: int | None,
    output: Path | None,
    weights: str | None,
    tokenizer: str | None,
    device: str | None,
    seed: int,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """What each token reads of each token: maps of attention as pictures, and what every head does in numbers.

    Maps are of the leaves that the model computes with, in float32: softmax of any kind, kernels, and for recurrent kinds the
    matrix that their states come to. Rows are tokens that read, columns tokens that are read. DIR is a folder that archc build
    or archc convert wrote, or a Hugging Face checkpoint.

    Example: archc attention tiny-llama --text "the cat sat" --layer 0 -o map.png
    """
    require_extra("torch", ("torch", "numpy", "safetensors"), "archc attention")
    if output is not None:
        require_extra("plot", ("matplotlib",), "a picture of attention")
    if (text is None) == (ids is None):
        raise click.UsageError("either --text or --ids says what is read")
    if decoder_text is not None and decoder_ids is not None:
        raise click.UsageError("--decoder-text and --decoder-ids say the same")
    if head is not None and layer is None:
        raise click.UsageError("--head is one of a layer; --layer says which")
    from archc.cli.attention_model import Given, look
    from archc.cli.attention_text import print_maps, write_picture
    from archc.cli.options import print_json

    found = look(
        source,
        overrides,
        Given(text=text, ids=ids, decoder_text=decoder_text, decoder_ids=decoder_ids, prefix_length=prefix_length),
        layer=layer,
        head=head,
        weights=weights,
        tokenizer=tokenizer,
        device=device,
        seed=seed,
    )
    if output is not None:
        write_picture(found, output)
    if as_json:
        print_json({**found.to_json(), "output": None if output is None else str(output)})
        return
    print_maps(found)
    if output is not None:
        click.echo(f"wrote {output}")
