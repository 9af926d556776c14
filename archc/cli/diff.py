"""``archc diff``."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.options import (
    EXIT_CHECK_FAILED,
    LENGTH,
    POSITIVE,
    Command,
    dtype_option,
    json_option,
    print_json,
    set_option,
)
from archc.cli.time_options import time_options


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
@click.option("--batch-size", type=POSITIVE, metavar="N", default=1, show_default=True, help="Sequences at once.")
@dtype_option("--dtype", text="dtype of the weights of both. Default: the specs'.")
@dtype_option("--kv-cache-dtype", text="dtype of both caches but for recurrent states. Default: the specs'.")
@time_options
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
    batch_size: int,
    dtype: str | None,
    kv_cache_dtype: str | None,
    fails: bool,
    overrides: tuple[str, ...],
    as_json: bool,
    **timed: Any,
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
        batch_size=batch_size,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        **timed,
    )
    if as_json:
        print_json(found.to_json())
    else:
        from archc.cli.diff_text import print_diff

        print_diff(found)
    if fails and found.is_different:
        ctx.exit(EXIT_CHECK_FAILED)
