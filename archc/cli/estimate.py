"""``archc estimate``."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.options import (
    LENGTH,
    POSITIVE,
    dtype_option,
    json_option,
    max_model_len_option,
    print_json,
    problems_of,
    set_option,
    spec_argument,
)
from archc.cli.plan_parts import Asked, Part, PartsCommand, asked_parts, part_options
from archc.errors import ArchcError, Problem, SpecError


@click.command("estimate", cls=PartsCommand)
@spec_argument
@click.option("--batch-size", type=POSITIVE, metavar="N", default=1, show_default=True, help="Sequences at once.")
@max_model_len_option
@click.option(
    "--source-len",
    type=LENGTH,
    metavar="TOKENS",
    help="Tokens given to the encoder that a decoder reads. Default: --max-model-len.",
)
@dtype_option("--dtype", text="dtype of the weights. Default: the spec's.")
@dtype_option("--kv-cache-dtype", text="dtype of keys, values, latents, convolution columns. Default: the spec's.")
@click.option(
    "--block-size",
    type=POSITIVE,
    metavar="TOKENS",
    help="Tokens a block of a paged cache. Default: the cache policy's, else 16.",
)
@click.option(
    "--explain",
    multiple=True,
    metavar="QUANTITY",
    help="Say where a number comes from, as in cache.used_bytes, instead of all numbers. Can be repeated.",
)
@part_options
@set_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    spec: str,
    batch_size: int,
    max_model_len: int | None,
    source_len: int | None,
    dtype: str | None,
    kv_cache_dtype: str | None,
    block_size: int | None,
    explain: tuple[str, ...],
    overrides: tuple[str, ...],
    as_json: bool,
    **values: Any,
) -> None:
    """Parameters, weight and cache bytes, and FLOPs of SPEC (a file or a shipped name), exactly, without torch."""
    from archc.estimation.estimate import estimate
    from archc.expansion import expand
    from archc.spec.load import load_spec

    parts = asked_parts(ctx, values)
    if parts and explain:
        raise click.UsageError(
            "--explain says where a number of the plain estimate comes from; leave out the other flags"
        )
    graph = expand(load_spec(spec, overrides))
    asked = Asked(graph, batch_size, max_model_len, source_len, dtype, kv_cache_dtype, block_size, values)
    plans = list(zip(parts, _all_found(parts, asked), strict=True))
    if plans and not as_json:
        _print_plans(plans)
        return
    found = estimate(
        graph,
        batch_size=batch_size,
        max_model_len=max_model_len,
        source_len=source_len,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
    )
    if explain:
        quantities = [found.explain(name) for name in explain]
        if as_json:
            print_json([quantity.to_json() for quantity in quantities])
            return
        from archc.cli.estimate_explain import print_quantity

        for quantity in quantities:
            print_quantity(quantity)
        return
    if as_json:
        print_json(found.to_json() | {part.key: plan.to_json() for part, plan in plans})
        return
    from archc.cli.estimate_text import print_estimate

    print_estimate(found)


def _all_found(parts: list[Part], asked: Asked) -> list[Any]:
    """What each part finds.

    Raises:
        SpecError: with the problems of all parts, each once.
    """
    found: list[Any] = []
    problems: dict[str, Problem] = {}
    for part in parts:
        try:
            found.append(part.estimated(asked))
        except ArchcError as error:
            for problem in problems_of(error):
                problems.setdefault(str(problem), problem)
    if problems:
        raise SpecError(list(problems.values()))
    return found


def _print_plans(plans: list[tuple[Part, Any]]) -> None:
    for number, (part, found) in enumerate(plans):
        if number:
            click.echo()
        part.print_found(found)
