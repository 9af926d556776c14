"""Times for people: the roof and its assumptions, a line a step, a table of parts a step, what a budget takes."""

from __future__ import annotations

import click

from archc.cli.table import print_heading, print_pairs, print_table, print_wrapped
from archc.planning.timing.budget import Budget
from archc.planning.timing.conventions import TIME_CONVENTIONS
from archc.planning.timing.estimate import Timing
from archc.planning.timing.flop_conventions import SOURCES
from archc.planning.timing.roofline import Row
from archc.planning.timing.stepping import StepTime
from archc.units import gib, power, si

STEPS = {"forward": "forward", "prefill": "prefill", "decode": "decode", "train_step": "training step"}

WHOLE_NUMBERS = 10**15
"""Counts from here on have an exponent: nobody reads so many digits, and columns would not fit."""

MANY = 10**9
"""The same for rates and times, which have few digits that mean something."""


def print_found(found: Timing) -> None:
    """All of it on stdout."""
    cache_dtype = f", cache {found.kv_cache_dtype}" if found.kv_cache_dtype else ""
    source = f" after {found.source_len:,} of the encoder" if found.source_len else ""
    click.secho(f"{found.name}, time: an estimate, not a measurement", bold=True)
    click.echo(
        f"  {found.dtype}{cache_dtype}, {found.batch_size:,} sequence{'s' if found.batch_size > 1 else ''} of "
        f"{found.budget.model.tokens:,} tokens{source} on {found.parallel.ranks:,} {found.roof.device.title} ({found.parallel})"
    )
    _print_roof(found)
    _print_steps(found)
    for step in found.steps.values():
        _print_parts(step, found)
    _print_budget(found.budget, found)
    if found.notes:
        print_heading("notes")
        for note in found.notes:
            print_wrapped(note)
    print_heading("conventions")
    for topic, text in TIME_CONVENTIONS.items():
        print_wrapped(f"{topic}: {text}")


def _print_roof(found: Timing) -> None:
    roof, device = found.roof, found.roof.device
    print_heading("roof (efficiencies are assumptions)")
    print_table(
        ("", "vendor's figure", "efficiency", "taken"),
        [
            (
                f"dense {roof.dtype} products",
                f"{roof.peak_flops_per_s / 1e12:,.1f} TFLOP/s",
                f"{roof.compute_efficiency:g}",
                f"{roof.flops_per_s / 1e12:,.1f} TFLOP/s",
            ),
            (
                f"memory, {device.label or gib(device.memory_bytes)}",
                f"{device.bandwidth_bytes_per_s / 1e9:,.1f} GB/s",
                f"{roof.memory_efficiency:g}",
                f"{roof.bytes_per_s / 1e9:,.1f} GB/s",
            ),
            (
                "links, one direction",
                f"{device.link_bytes_per_s / 1e9:,.1f} GB/s",
                f"{roof.link_efficiency:g}",
                f"{device.link_bytes_per_s * roof.link_efficiency / 1e9:,.1f} GB/s",
            ),
        ],
    )
    print_wrapped(f"links: {device.link_name or 'no name'}, {device.link_devices:,} devices")
    print_wrapped(
        f"from {roof.ridge_flops_per_byte:,.1f} FLOPs a byte on compute sets the time; source: {device.source}"
    )


def _print_steps(found: Timing) -> None:
    rows: list[tuple[str, ...]] = []
    for name, step in found.steps.items():
        waits = sum(step.communication_s.values())
        rows.append(
            (
                STEPS[name],
                duration(step.seconds),
                whole(step.tokens),
                amount(step.tokens_per_s),
                duration(step.work_s),
                duration(waits) if waits else "-",
                f"{step.flops_utilization:.1%}",
            )
        )
    print_heading("steps (decode: one token a sequence)" if "decode" in found.steps else "steps")
    print_table(("", "time", "tokens", "tokens/s", "work of a pass", "communication", "of the peak"), rows)
    train = found.steps["train_step"]
    extra = (
        f"{found.micro_batches:,} pass{'es' if found.micro_batches > 1 else ''} of {found.micro_batch_size:,} "
        f"sequence{'s' if found.micro_batch_size > 1 else ''} a copy, recomputation {found.recompute}"
    )
    more = {"AdamW": train.optimizer_s, "bubble": train.bubble_s}
    told = [extra, *(f"{what} {duration(seconds)}" for what, seconds in more.items() if seconds)]
    print_wrapped(f"training step: {', '.join(told)}")
    for name, step in found.steps.items():
        if step.communication_s:
            kinds = (f"{kind.replace('_', ' ')} {duration(each)}" for kind, each in step.communication_s.items())
            print_wrapped(f"communication of {STEPS[name]}: {', '.join(kinds)}")


def _print_parts(step: StepTime, found: Timing) -> None:
    ridge = found.roof.ridge_flops_per_byte
    print_heading(f"{STEPS[step.name]}, one rank (ridge at {ridge:,.1f} FLOPs a byte)")
    columns = ("part", "FLOPs", "bytes", "weights", "states", "FLOPs/byte", "bound by", "time", "share")
    print_table(columns, [_part(row, step) for row in (*step.by_part, step.whole)])


def _part(row: Row, step: StepTime) -> tuple[str, ...]:
    work = row.work
    share = "" if row.bound_share > 0.995 else f" {row.bound_share:.0%}"
    return (
        row.name,
        si(work.flops),
        gib(work.bytes),
        gib(work.weight_bytes),
        gib(work.state_bytes) if work.state_bytes else "-",
        f"{work.flops_per_byte:,.1f}" if work.flops_per_byte < MANY else amount(work.flops_per_byte),
        f"{row.bound}{share}",
        duration(row.seconds),
        f"{row.seconds / step.work_s:.1%}",
    )


def _print_budget(budget: Budget, found: Timing) -> None:
    tokens = "" if budget.tokens is None else f" on {budget.tokens:,} tokens"
    print_heading(f"training{tokens}, FLOPs by {budget.model.convention}")
    print_wrapped(f"{budget.model.convention}: {SOURCES[budget.model.convention]}")
    device = found.roof.device
    pairs = [
        ("FLOPs a token", whole(round(budget.model.per_token)), si(round(budget.model.per_token))),
        ("tokens/s, all devices", amount(budget.tokens_per_s), f"{amount(budget.tokens_per_s / budget.gpus)} each"),
        ("MFU", f"{budget.model_flops_utilization:.1%}", f"HFU {budget.hardware_flops_utilization:.1%}"),
    ]
    if budget.total_flops is not None and budget.seconds is not None and budget.gpu_hours is not None:
        pairs.append(("FLOPs in all", power(budget.total_flops, 3), ""))
        pairs.append(("time", duration(budget.seconds), f"on {budget.gpus:,} device{'s' if budget.gpus > 1 else ''}"))
        pairs.append(("device hours", f"{whole(round(budget.gpu_hours))} h", ""))
        energy = (
            "unknown: no power is published" if budget.energy_kwh is None else f"{whole(round(budget.energy_kwh))} kWh"
        )
        pairs.append(("energy", energy, f"{device.power_w} W each, PUE 1.0" if device.power_w else ""))
    print_pairs(pairs)


def duration(seconds: float) -> str:
    """A time for people: three digits and the unit that suits them."""
    for unit, size in (("days", 86_400.0), ("h", 3600.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * (2 if unit in ("days", "h") else 1):
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e6)} us"


def whole(count: int) -> str:
    """A count with all its digits, while there are few enough."""
    return f"{count:,}" if count < WHOLE_NUMBERS else power(count, 3)


def amount(rate: float) -> str:
    """A rate for people, with three digits at least."""
    return _digits(rate)


def _digits(number: float) -> str:
    if number >= MANY or 0 < number < 0.01:
        return power(number)
    decimals = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:,.{decimals}f}"
