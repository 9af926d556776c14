"""Memory of serving for people: a table a layer kind, a table a stage, blocks, and what fits."""

from __future__ import annotations

import textwrap

import click

from archc.cli.table import WIDTH, print_heading, print_pairs, print_table, print_wrapped
from archc.planning.serving.estimate import OVERHEAD_BYTES
from archc.planning.serving.memory import Serving, StageMemory
from archc.planning.serving.paged import Group
from archc.planning.serving.rank_cache import KindCache, plain
from archc.units import gib

RUNTIMES = {
    "paged": "blocks of a paged runtime",
    "tensors": "tensors of archc's runtimes",
    "ideal": "no rounding at all",
}


def print_found(found: Serving) -> None:
    """All of it on stdout."""
    options = found.options
    cache_dtype = f", cache {options.kv_cache_dtype}" if options.kv_cache_dtype else ""
    head = f"{found.name}, served"
    what = (
        f": {options.dtype}{cache_dtype}, {_counted(options.batch_size, 'sequence')} of "
        f"{_counted(options.max_model_len, 'token')} on {_where(found)}"
    )
    click.secho(head, bold=True, nl=False)
    click.echo(textwrap.fill(head + what, width=WIDTH, subsequent_indent="  ").removeprefix(head))
    if options.source_len is not None:
        click.echo(f"  each reads {_counted(options.source_len, 'token')} of an encoder")
    _print_kinds(found)
    _print_stages(found)
    _print_pages(found)
    _print_fits(found)
    if found.replicated:
        print_heading("weights that several ranks hold")
        for why, names in found.replicated.items():
            print_wrapped(f"{why}: {', '.join(names)}")
    for heading, lines in (("notes", found.notes), ("warnings", found.warnings)):
        if lines:
            print_heading(heading)
            for line in lines:
                print_wrapped(line)


def _where(found: Serving) -> str:
    if found.device is None:
        return "one rank" if found.gpus == 1 else f"{found.gpus:,} ranks ({found.parallel})"
    return f"{found.gpus:,} {found.device.title} ({found.parallel})"


def _print_kinds(found: Serving) -> None:
    print_heading("cache of one sequence, by mixer: whole model | one rank (bytes)")
    if not found.kinds:
        click.echo("  none: nothing is kept between calls")
        return
    columns = ("mixer", "layers", "B/token", "| rank", "window", "window B", "| rank", "state B", "| rank")
    print_table(columns, [_kind_row(kind) for kind in found.kinds])
    sources = [kind for kind in found.kinds if kind.source_token_bytes]
    for kind in sources:
        click.echo(
            f"  {kind.name}: {kind.source_token_bytes:,} B a token of the encoder, {kind.rank_source_token_bytes:,} B on a rank"
        )
    if found.parallel.ranks > 1:
        for kind in found.kinds:
            names: dict[str, list[str]] = {}
            for name, _, held in (line.partition(": ") for line in kind.held):
                names.setdefault(held, []).append(name)
            said = [f"{', '.join(those)}: {held}" for held, those in names.items()]
            print_wrapped(f"{kind.name}: {'; '.join(said)}")


def _kind_row(kind: KindCache) -> tuple[str, ...]:
    window = "-" if kind.window_tokens is None else f"{kind.window_tokens:,}"
    return (
        kind.name,
        f"{kind.layers:,}",
        f"{plain(kind.token_bytes):,}",
        f"{plain(kind.rank_token_bytes):,}",
        window,
        f"{kind.window_bytes:,}",
        f"{kind.rank_window_bytes:,}",
        f"{kind.state_bytes:,}",
        f"{kind.rank_state_bytes:,}",
    )


def _print_stages(found: Serving) -> None:
    print_heading("memory of one rank" + (", by stage" if len(found.stages) > 1 else ""))
    columns = ("stage", "layers", "weights", "workspace", "cache: used", "tensors", "paged", "total, paged")
    print_table(columns, [_stage_row(stage) for stage in found.stages], left=0)
    workspace = max((stage.workspace for stage in found.stages if stage.workspace), key=lambda w: w.bytes, default=None)
    if workspace is None:
        click.echo("  workspace: as stated")
    else:
        logits = f", and {_counted(workspace.rows, 'row')} of logits, {gib(workspace.logits_bytes)}"
        read = (
            f"values alive while {_counted(workspace.tokens, 'token')} {'is' if workspace.tokens == 1 else 'are'} read"
        )
        print_wrapped(f"workspace: {read}, {gib(workspace.activation_bytes)}{logits if workspace.rows else ''}")
    overhead = found.options.overhead_bytes
    assumed = "an assumption for what a runtime itself takes on a device" if overhead == OVERHEAD_BYTES else "as stated"
    click.echo(f"  overhead: {gib(overhead)}, {assumed}")
    names = ("weight_bytes", "used_bytes", "paged_bytes", "total_bytes")
    labels = ("weights", "cache used", "cache paged", "total, paged")
    pairs = [
        (label, f"{found.total(name):,} B", gib(found.total(name))) for label, name in zip(labels, names, strict=True)
    ]
    click.echo(f"  all {found.parallel.ranks:,} ranks together:" if found.parallel.ranks > 1 else "  in bytes:")
    print_pairs([(f"  {label}", *rest) for label, *rest in pairs])


def _stage_row(stage: StageMemory) -> tuple[str, ...]:
    sizes = (
        stage.weight_bytes,
        stage.workspace_bytes,
        stage.used_bytes,
        stage.allocated_bytes,
        stage.paged_bytes,
        stage.total_bytes,
    )
    return (str(stage.index), f"{stage.layers:,}", *(gib(size) for size in sizes))


def _print_pages(found: Serving) -> None:
    pages, options = found.pages, found.options
    if not pages.groups:
        return
    print_heading("paged cache (vLLM's rules), groups that take blocks from one pool")
    length, source = options.max_model_len, options.source_len or options.max_model_len

    def row(group: Group) -> tuple[str, ...]:
        held = group.blocks(length, source_tokens=source, mode=pages.mode, cp=pages.cp)
        window = "-" if group.window is None else f"{group.window:,}"
        sizes = (group.block_tokens, group.page_bytes, group.own_bytes, held)
        return (", ".join(group.kinds), group.type, window, *(f"{size:,}" for size in sizes))

    alike: dict[tuple[str, ...], list[int]] = {}
    for group in pages.groups:
        alike.setdefault(row(group), []).append(sum(group.layers))
    columns = ("mixer", "type", "groups", "layers", "window", "tokens/block", "page B", "used", "blocks/sequence")
    rows = [
        (*cells[:2], f"{len(layers):,}", f"{sum(layers):,}", *cells[2:-1], _each(cells[-1], len(layers)))
        for cells, layers in alike.items()
    ]
    print_table(columns, rows, left=2)
    worst = found.worst
    of_stage = f" of stage {worst.index}" if len(found.stages) > 1 else ""
    pairs = [
        (f"a block on a rank{of_stage}", f"{pages.block_bytes[worst.index]:,} B"),
        (
            "a sequence of one token",
            f"{pages.least_bytes(worst.index):,} B in {_counted(pages.request_blocks(1, source_tokens=1), 'block')}",
        ),
        (
            f"a sequence of {length:,} tokens",
            f"{pages.batch_bytes(worst.index, 1, length, source_tokens=source):,} B in "
            f"{_counted(pages.request_blocks(length, source_tokens=source), 'block')}",
        ),
    ]
    if beside := pages.beside_bytes[worst.index]:
        pairs.insert(1, ("beside the blocks, a sequence", f"{beside:,} B"))
    print_pairs(pairs)
    if worst.unmanaged_bytes and worst.paged_bytes < worst.unmanaged_bytes:
        waste = 1 - worst.used_bytes / worst.unmanaged_bytes
        back = 1 - worst.paged_bytes / worst.unmanaged_bytes
        print_wrapped(
            f"without groups every layer keeps every token: {gib(worst.unmanaged_bytes)} a rank, of which {waste:.2%} is never "
            f"read; groups give back {back:.2%}"
        )
    if pool := found.pool:
        blocks = (
            f"{_counted(pool.blocks, 'block')}, {pool.concurrency:,.2f} sequences of {length:,} tokens a copy; one of one token "
            f"takes {pool.least_request_share:.3%} of it"
        )
        print_wrapped(f"pool: {f'{gib(pool.bytes)}, {blocks}' if pool.blocks else 'no room for a block'}")


def _print_fits(found: Serving) -> None:
    if found.device is None:
        return
    options = found.options
    budget = gib(int(found.device.memory_bytes * options.memory_utilization))
    print_heading(
        f"what fits in {options.memory_utilization:g} of {gib(found.device.memory_bytes)} a device, {budget}: sequences of "
        f"{options.max_model_len:,} tokens, or tokens of {_counted(options.batch_size, 'sequence')}"
    )
    columns = ("cache in", "sequences", "tokens each", "one more is too much for")
    rows = [
        (RUNTIMES[name], _most(fit.max_batch), _most(fit.max_length_tokens), fit.limit)
        for name, fit in found.fits.items()
    ]
    print_table(columns, rows)


def _most(number: int | None) -> str:
    return "no limit" if number is None else f"{number:,}"


def _each(blocks: str, groups: int) -> str:
    return blocks if groups == 1 else f"{groups} x {blocks}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
