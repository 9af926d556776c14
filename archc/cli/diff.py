"""``archc diff``."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.options import (
    EXIT_CHECK_FAILED,
    LENGTH,
    Command,
    json_option,
    print_json,
    set_option,
)
from archc.cli.time_options import cost_options


@click.command("diff", cls=Command)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option("--set-a", "overrides_a", multiple=True, metavar="PATH=VALUE", help="Change a value of A only.")
@click.option("--set-b", "overrides_b", multiple=True, metavar="PATH=VALUE", help="Change a value of B only.")
@click.option(
    "--at",
    "length",
    type=LENGTH,
    metavar="LENGTH",
    help="Tokens at which costs are compared, as in 128k (131,072). Default: the least context length of the two, or 4096.",
)
@cost_options
@click.option("--exit-code", "fails", is_flag=True, help="Exit with 1 where the two differ, with 0 where they don't.")
@set_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    a: str,
    b: str | None,
    overrides_a: tuple[str, ...],
    overrides_b: tuple[str, ...],
    length: int | None,
    fails: bool,
    overrides: tuple[str, ...],
    as_json: bool,
    **stated: Any,
) -> None:
    """What is otherwise in B than in A, files or shipped names: keys, layers, ops, every cost, and where each comes from.

    Without B, A is compared with itself, changed by --set-b.

    Example: archc diff llama-3-8b --set-b mixers.attn.num_kv_heads=4 --at 128k
    """
    if b is None and not (overrides_a or overrides_b):
        raise click.UsageError("there is nothing to compare A with; give B, or --set-b PATH=VALUE")
    from archc.planning.comparison.diff import diff

    found = diff(
        a,
        b,
        overrides=overrides,
        overrides_a=overrides_a,
        overrides_b=overrides_b,
        length=length,
        **stated,
    )
    if as_json:
        print_json(found.to_json())
    else:
        from archc.cli.diff_text import print_diff

        print_diff(found)
    if fails and found.is_different:
        ctx.exit(EXIT_CHECK_FAILED)
