"""Memory of training for people: a table of ranks, what fits, and what is not counted."""

from __future__ import annotations

from collections.abc import Sequence

import click

from archc.cli.table import print_heading, print_pairs, print_table, print_wrapped
from archc.planning.training.memory import CONVENTIONS, ROWS, RankMemory, Training
from archc.planning.training.optimizers import OPTIMIZERS
from archc.planning.training.schedules import SCHEDULES
from archc.units import gib

MOST_COLUMNS = 6
"""Stages shown side by side; of more, those whose rows differ."""


def print_found(found: Training) -> None:
    """All of it on stdout."""
    options = found.options
    click.secho(f"{found.name}, trained", bold=True, nl=False)
    click.echo(
        f": {options.dtype}, micro-batch of {options.micro_batch_size:,} x {options.max_model_len:,} tokens on {_where(found)}"
    )
    _print_setting(found)
    _print_ranks(found)
    _print_fit(found)
    if found.left_out:
        print_heading("not counted: ops that can't say what backward keeps of them")
        names: dict[str, int] = {}
        for _, name in found.left_out:
            names[name] = names.get(name, 0) + 1
        print_wrapped("; ".join(f"{name} in {count} place{'s' if count > 1 else ''}" for name, count in names.items()))
    if found.notes:
        print_heading("notes")
        for note in found.notes:
            print_wrapped(note)
    print_heading("conventions")
    for topic, text in CONVENTIONS.items():
        print_wrapped(f"{topic}: {text}")


def _where(found: Training) -> str:
    ranks = found.parallel.ranks
    device = "" if found.device is None else f" {found.device.title}"
    return f"{ranks:,}{device or (' rank' if ranks == 1 else ' ranks')} ({found.parallel})"


def _print_setting(found: Training) -> None:
    options = found.options
    masters = "float32 masters of narrower weights" if options.master_weights else "no master weights"
    grads = f", gradients {options.grad_dtype}" if options.grad_dtype else ""
    rows = [
        ("optimizer", f"{options.optimizer}, {masters}{grads}: {OPTIMIZERS[options.optimizer].source}"),
        ("zero", f"{options.zero}"),
        ("recompute", options.recompute),
    ]
    if found.parallel.pp > 1:
        virtual = f", {options.virtual_stages} runs of layers a stage" if options.virtual_stages > 1 else ""
        rows.append(("schedule", f"{options.schedule}{virtual}: {SCHEDULES[options.schedule].source}"))
    passes = f"{options.micro_batches:,} micro-batch{'es' if options.micro_batches > 1 else ''}"
    copies = f" of each of {found.parallel.dp:,} copies" if found.parallel.dp > 1 else ""
    rows.append(("step", f"{passes}{copies}, {found.tokens_per_step:,} tokens"))
    for name, text in rows:
        print_wrapped(f"{name}: {text}")


def _print_ranks(found: Training) -> None:
    print_heading("one rank of each stage, when it holds the most")
    shown = _shown(found.stages)
    if found.parallel.pp > len(shown):
        click.echo(f"  stages {', '.join(str(each.stage) for each in shown)} of {found.parallel.pp}")
    tables = [stage.rows() for stage in shown]
    names = sorted({name for table in tables for name in table}, key=lambda name: _place(name, tables))
    rows = [(name, *(_cell(table.get(name, 0)) for table in tables)) for name in names]
    rows.append(("peak", *(_cell(stage.peak_bytes) for stage in shown)))
    if len(shown) == 1:
        exact = [*tables[0].values(), shown[0].peak_bytes]
        print_pairs([(*row, f"{count_bytes:,} B") for row, count_bytes in zip(rows, exact, strict=True)])
    else:
        rows.append(("micro-batches in flight", *(str(stage.in_flight) for stage in shown)))
        rows.append(("layers", *(str(stage.layers) for stage in shown)))
        print_table(("bytes", *(f"stage {stage.stage}" for stage in shown)), rows)
    peak = found.peak_stage
    if found.parallel.pp > 1:
        click.echo(f"  peak: {found.peak_bytes:,} B, on stage {peak.stage}")
    if peak.weights.host:
        click.echo(f"  on the host: {peak.weights.host:,} B of the optimizer's counts of steps")


def _place(name: str, tables: Sequence[dict[str, int]]) -> tuple[int, int]:
    """Where a row stands: as in a table of its own; activations in the order of the first stage that has them."""
    if name.startswith("activations"):
        return ROWS.index("activations"), list(dict.fromkeys(row for table in tables for row in table)).index(name)
    return ROWS.index(name), 0


def _shown(stages: Sequence[RankMemory]) -> list[RankMemory]:
    if len(stages) <= MOST_COLUMNS:
        return list(stages)
    most = max(stages, key=lambda stage: stage.peak_bytes).stage
    last = len(stages) - 1
    return [stages[index] for index in sorted({0, 1, most, len(stages) // 2, last - 1, last})]


def _cell(count_bytes: int) -> str:
    return gib(count_bytes) if count_bytes else "-"


def _print_fit(found: Training) -> None:
    device = found.device
    if device is None:
        return
    print_heading(f"on {device.title}, {gib(device.memory_bytes)}")
    left = device.memory_bytes - found.peak_bytes
    click.echo(f"  fits, {gib(left)} are left" if left >= 0 else f"  does not fit: {gib(-left)} are missing")
    most = found.largest_micro_batch
    size = "of any size looked for" if most is None else f"of {most:,} sequences" if most else "of none"
    click.echo(f"  largest micro-batch that fits: {size}")
