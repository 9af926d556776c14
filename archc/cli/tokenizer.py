"""``archc tokenizer``: learn one from texts, and look at one."""

from __future__ import annotations

import click

from archc.cli.options import Command, Group, json_option, print_json, require_extra, set_option, spec_argument


@click.group("tokenizer", cls=Group)
def command() -> None:
    """Tokenizers by the tokenizers library: learn one from texts, and look at one."""


@command.command("train", cls=Command)
@spec_argument
@click.option(
    "--data",
    "files",
    multiple=True,
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Text to learn from, UTF-8. Can be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    default="tokenizer.json",
    show_default=True,
    help="Where to write.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
@set_option
@json_option
def train(
    spec: str, files: tuple[str, ...], output: str, overwrite: bool, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Learn the tokenizer that SPEC describes: kind char, word or bpe, its vocab_size, its special tokens at their ids."""
    require_extra("tokenizers", ("tokenizers",), "archc tokenizer train")
    from archc.cli.tokenizer_files import print_trained, train_file

    found = train_file(spec, overrides, files, output, overwrite=overwrite)
    if as_json:
        print_json(found)
    else:
        print_trained(found)


@command.command("show", cls=Command)
@click.argument("source", metavar="FILE|SPEC")
@click.option("--text", "texts", multiple=True, metavar="TEXT", help="Encode a text. Several are padded as a batch.")
@click.option("--ids", "ids", metavar="1,2,3", help="Decode ids.")
@click.option("--keep-special", is_flag=True, help="Keep special tokens where ids become text.")
@set_option
@json_option
def show(
    source: str,
    texts: tuple[str, ...],
    ids: str | None,
    keep_special: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """A tokenizer.json or the folder of one, or what a SPEC says of its tokenizer: sizes, special tokens, texts and ids."""
    from archc.cli.tokenizer_files import print_shown, show_tokenizer

    found = show_tokenizer(source, overrides, texts=texts, ids=ids, keep_special=keep_special)
    if as_json:
        print_json(found)
    else:
        print_shown(found)
