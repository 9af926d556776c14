"""Options of the commands that write text: prompts, how ids are drawn, how much at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from archc.cli.options import POSITIVE

Function = TypeVar("Function", bound=Callable[..., object])


def ids_of(text: str) -> list[int]:
    """Ids as in 1,2,3.

    Raises:
        ValueError: they are none.
    """
    return [int(part) for part in text.replace(",", " ").split()]


def _plain_ids(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    try:
        return None if value is None else tuple(ids_of(value))
    except ValueError:
        raise click.BadParameter(f"should be ids as in 1,2,3 (found {value!r})") from None


_PROMPTS = (
    click.option("--prompt", "texts", multiple=True, metavar="TEXT", help="A prompt. Can be repeated."),
    click.option("--prompt-ids", "ids", multiple=True, metavar="1,2,3", help="A prompt as ids. Can be repeated."),
    click.option(
        "--prompt-file",
        "files",
        multiple=True,
        metavar="FILE",
        help="A file that is one prompt, - for stdin. Can be repeated.",
    ),
)
_DRAWING = (
    click.option("--max-new-tokens", type=POSITIVE, metavar="N", help="Tokens to generate a prompt. Default: 128."),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        metavar="T",
        default=0.0,
        show_default=True,
        help="Divides the logits; 0 takes the likeliest.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(min=0),
        metavar="K",
        default=0,
        show_default=True,
        help="Keep so many ids; 0: all.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(min=0, max=1, min_open=True),
        metavar="P",
        default=1.0,
        show_default=True,
        help="Keep the likeliest ids that together have this probability.",
    ),
    click.option(
        "--min-p",
        type=click.FloatRange(min=0, max=1),
        metavar="P",
        default=0.0,
        show_default=True,
        help="Keep ids that have this share of the likeliest one's probability.",
    ),
    click.option(
        "--repetition-penalty",
        type=click.FloatRange(min=0, min_open=True),
        metavar="X",
        default=1.0,
        show_default=True,
        help="Above 1, ids of the prompt and of the answer so far become less likely.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draws."),
    click.option(
        "--stop-ids",
        callback=_plain_ids,
        metavar="1,2,3",
        help="Ids that end an answer. Default: the tokenizer's end of text.",
    ),
    click.option("--batch-size", type=POSITIVE, metavar="N", help="Prompts at once. Default: all."),
)


def prompt_options(function: Function) -> Function:
    """--prompt, --prompt-ids and --prompt-file."""
    return _with(_PROMPTS, function)


def drawing_options(function: Function) -> Function:
    """How many ids, how they are drawn, what ends them, and prompts at once."""
    return _with(_DRAWING, function)


def chunk_size_option(function: Function) -> Function:
    """--chunk-size of prompts."""
    return click.option(
        "--chunk-size",
        type=POSITIVE,
        metavar="TOKENS",
        default=512,
        show_default=True,
        help="Tokens of a prompt at a time.",
    )(function)


def decoder_ids_option(function: Function) -> Function:
    """--decoder-ids of a decoder that reads an encoder."""
    return click.option(
        "--decoder-ids",
        callback=_plain_ids,
        metavar="1,2,3",
        help="What the decoder of a prompt's encoder starts from. Default: the tokenizer's bos id, else its pad id.",
    )(function)


def ids_option(function: Function) -> Function:
    """--ids instead of text."""
    return click.option("--ids", "as_ids", is_flag=True, help="Print ids even where there is a tokenizer.")(function)


def _with(options: tuple[Callable[[Function], Function], ...], function: Function) -> Function:
    # The decorator nearest to the function comes last in the help.
    for option in reversed(options):
        function = option(function)
    return function
