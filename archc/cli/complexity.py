"""``archc complexity``."""

from __future__ import annotations

import click

from archc.cli.options import LENGTHS, POSITIVE, Command, json_option, print_json, set_option, spec_argument


@click.command("complexity", cls=Command)
@spec_argument
@click.option(
    "--at",
    "lengths",
    type=LENGTHS,
    metavar="LENGTHS",
    help="Tokens at which costs are given, as in 4k,128k,1M (k = 1024, M = 1024 k). Default: these.",
)
@click.option("--batch-size", type=POSITIVE, metavar="N", default=1, show_default=True, help="Sequences at once.")
@set_option
@json_option
def command(
    spec: str, lengths: tuple[int, ...] | None, batch_size: int, overrides: tuple[str, ...], as_json: bool
) -> None:
    """How time and cache of each mixer and feed-forward of SPEC grow with the length, without torch.

    Prints O(.) of a prefill, a decode step and the cache, the length from which each mixer is cheaper than full attention, and
    FLOPs for each byte that is moved.

    Example: archc complexity kimi-linear-48b-a3b --at 4k,128k
    """
    from archc.estimation.complexity import LENGTHS_TOKENS, complexity
    from archc.spec.load import load_spec

    found = complexity(load_spec(spec, overrides), lengths=lengths or LENGTHS_TOKENS, batch_size=batch_size)
    if as_json:
        print_json(found.to_json())
        return
    from archc.cli.complexity_text import print_complexity

    print_complexity(found)
