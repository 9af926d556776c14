"""Options of commands that plan: on what hardware, and over how many ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from archc.planning.parallel import Parallel

Function = TypeVar("Function", bound=Callable[..., Any])

RANKS = click.IntRange(min=1, max=1 << 20)

SPLITS = {
    "tp": "Ranks that share heads, feed-forward channels and the vocabulary.",
    "pp": "Stages of consecutive layers.",
    "ep": "Ranks that share experts; they are among the tp x dp x cp ranks of a stage.",
    "dp": "Copies of the model, each with sequences of its own.",
    "cp": "Ranks that share the tokens of a sequence.",
}
"""Name -> what such ranks share."""


def gpu_option(function: Function) -> Function:
    """--gpu, a device of the catalogue or of the file given as --hardware."""
    file = click.option(
        "--hardware",
        metavar="FILE",
        help="Devices of your own, in the form of the catalogue (archc hardware --json).",
    )
    return click.option("--gpu", metavar="NAME", help="Device of the catalogue: h200, a100-80gb, …")(file(function))


def split_options(function: Function) -> Function:
    """--gpus, --tp, --pp, --ep, --dp, --cp; the command gets each as a number or None."""
    text = (
        "Devices. Without --tp and --pp they are shared by tp as far as the model can be cut, then by pp; for --time by tp "
        "as far as links reach, then by dp. What stated ranks leave is tp's, "
        "for --train dp's, for --time dp's where --dp is not stated."
    )
    return click.option("--gpus", type=RANKS, metavar="N", help=text)(rank_options(function))


def rank_options(function: Function) -> Function:
    """--tp, --pp, --ep, --dp, --cp likewise."""
    for name, text in reversed(SPLITS.items()):
        function = click.option(f"--{name}", type=RANKS, metavar="N", help=f"{text} Default: 1.")(function)
    return function


def parallel_of(values: dict[str, int | None]) -> Parallel | None:
    """The split that is stated, None where nothing is; ``values`` has the options of ``split_options`` by name."""
    from archc.planning.parallel import Parallel

    stated = {name: size for name in SPLITS if (size := values[name]) is not None}
    return Parallel(**stated) if stated else None
