"""``archc plan``."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.options import Command, json_option, print_json, set_option, spec_argument
from archc.cli.plan_options import RANKS, parallel_of, rank_options

_NAMES = ("gpus", "zero", "optimizer", "dtype", "master_weights", "grad_dtype")
"""Options by the names of ``archc.plan``'s arguments; what is not stated keeps its default there."""


@click.command("plan", cls=Command)
@spec_argument
@click.option("--gpus", type=RANKS, metavar="N", help="Devices; what the stated ranks leave of them is dp's.")
@rank_options
@click.option(
    "--zero",
    type=click.IntRange(0, 3),
    metavar="0..3",
    help="Cut over dp x cp: 1 optimizer states, 2 gradients too, 3 parameters too (FSDP). Default: 3, as archc train.",
)
@click.option("--optimizer", metavar="NAME", help="As archc estimate --train takes it. Default: adamw.")
@click.option("--dtype", metavar="DTYPE", help="dtype of the weights in products. Default: the spec's.")
@click.option(
    "--master-weights/--no-master-weights",
    default=None,
    help="Whether the optimizer moves float32 copies of narrower weights. Default: yes.",
)
@click.option(
    "--grad-dtype",
    metavar="DTYPE",
    help="dtype in which gradients are summed. Default: the weights', under --zero 3 the masters'.",
)
@click.option("--states", "shows_states", is_flag=True, help="Pieces of the caches, too.")
@set_option
@json_option
def command(spec: str, shows_states: bool, overrides: tuple[str, ...], as_json: bool, **values: Any) -> None:
    """How training cuts SPEC (a file or a shipped name) over ranks: what along which axis, what is on several and why, bytes.

    Bytes are those of archc estimate --train with the same options. A plan that can't be is refused with every reason; of one
    that archc train can't run, though it can be counted, the reasons are told.

    Example: archc plan llama-3-8b --tp 8 --dp 2
    """
    from archc.expansion import expand
    from archc.planning.plan import plan
    from archc.spec.load import load_spec

    stated = {name: values[name] for name in _NAMES if values[name] is not None}
    found = plan(expand(load_spec(spec, overrides)), parallel_of(values), **stated)
    if as_json:
        print_json(found.to_json())
        return
    from archc.cli.plan_text import print_plan

    print_plan(found, shows_states=shows_states)
