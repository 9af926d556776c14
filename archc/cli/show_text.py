"""The layers of a spec, runs of equal ones on one line, and the parameters of each part."""

from __future__ import annotations

from typing import Any

import click

from archc.cli.table import print_heading, print_pairs, print_table
from archc.estimation.estimate import Estimate, estimate
from archc.spec.schedule import LayerPlan
from archc.spec.schema import Spec

_LAYERS = {"stack": "layers", "encoder": "encoder layers", "decoder": "decoder layers"}


def show_json(spec: Spec) -> dict[str, Any]:
    """The layers one by one, and the parameters by part."""
    found = estimate(spec)
    return {
        "name": spec.name,
        "description": spec.description,
        **({"layers": _layers_json(spec.schedule())} if spec.stack is not None else {}),
        **{section: _layers_json(spec.schedule(section)) for section in spec.stacks() if section != "stack"},
        "mtp": _layers_json(spec.mtp_schedule()),
        "parameters": found.parameters.to_json(),
    }


def print_layers(spec: Spec) -> None:
    """The layer list and the parameter table."""
    found = estimate(spec)
    click.secho(spec.name, bold=True, nl=False)
    click.echo(f": {spec.description}" if spec.description else "")
    hidden_size = spec.embedding.hidden_size
    layers = " and ".join(f"{stack.num_layers:,} {_LAYERS[name]}" for name, stack in spec.stacks().items())
    click.echo(f"hidden size {hidden_size:,}, {layers}, {spec.dtype}")
    for section in spec.stacks():
        _print_schedule(_LAYERS[section], spec.schedule(section), spec)
    if spec.mtp is not None:
        _print_schedule("mtp layers (counted apart)", spec.mtp_schedule(), spec)
    _print_parts(found)


def _print_schedule(heading: str, plans: tuple[LayerPlan, ...], spec: Spec) -> None:
    print_heading(heading)
    crosses = any(plan.cross for plan in plans)
    rows: list[tuple[str, ...]] = []
    for first, last, plan in runs(plans):
        index = str(first) if first == last else f"{first}-{last}"
        cross = (_described(plan.cross, spec.mixers),) if crosses else ()
        parts = (_described(plan.mixer, spec.mixers), *cross, _described(plan.ffn, spec.ffns))
        rows.append((index, str(last - first + 1), *parts))
    columns = ("layer", "count", "mixer", *(("cross",) if crosses else ()), "ffn")
    print_table(columns, rows, left=len(columns))


def _print_parts(found: Estimate) -> None:
    counts = found.parameters
    print_heading("parameters")
    rows = [(".".join(part), f"{n:,}", f"{n / counts.total:.2%}") for part, n in counts.by_part.items()]
    print_pairs([*rows, ("total", f"{counts.total:,}", ""), ("active a token", f"{counts.active:,}", "")])


def runs(plans: tuple[LayerPlan, ...]) -> list[tuple[int, int, LayerPlan]]:
    """(first, last, plan) of every run of equal layers, counted from 0."""
    found: list[tuple[int, int, LayerPlan]] = []
    for index, plan in enumerate(plans):
        if found and found[-1][2] == plan:
            found[-1] = (found[-1][0], index, plan)
        else:
            found.append((index, index, plan))
    return found


def _layers_json(plans: tuple[LayerPlan, ...]) -> list[dict[str, Any]]:
    return [
        {
            "layer": index,
            "mixer": plan.mixer,
            **({} if plan.cross is None else {"cross": plan.cross}),
            "ffn": plan.ffn,
        }
        for index, plan in enumerate(plans)
    ]


def _described(name: str | None, kinds: dict[str, Any]) -> str:
    """The name that a spec gives, with the kind where it is another word."""
    if name is None:
        return "-"
    kind: str = kinds[name].kind_name
    return name if name == kind else f"{name} ({kind})"
