"""``archc plugins show``: a kind's keys, what it comes to in a model, and which targets can lower that."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

import click

from archc import registry
from archc.cli.plugin_trace import Trace, in_a_spec, in_shipped_specs
from archc.cli.plugin_usage import usage
from archc.cli.plugins import shortened_list
from archc.cli.table import print_heading, print_pairs, print_table
from archc.errors import ArchcError, PluginError
from archc.ops.opaque import lowering_name
from archc.spec.kind import Kind
from archc.spec.manual import REQUIRED, Key, keys
from archc.spec.slots import Slot

TARGETS = ("torch", "onnx")
OPLESS = ("tokenizer", "cache", "scaling")
"""Families whose kinds say numbers to others and place no op."""


def describe(kind: str, values: Sequence[str] = ()) -> dict[str, Any]:
    """All that is known of ``family.name``, as data; ``values`` are ``key=value``, for what is traced.

    Raises:
        PluginError: no such kind is installed, or it is broken.
        SpecError: the values are wrong.
    """
    family, _, name = kind.partition(".")
    if family not in registry.FAMILIES or not name:
        raise PluginError(f"a kind is named as family.name (found {kind!r}); families: {', '.join(registry.FAMILIES)}")
    registry.load(family, name)
    model = Slot(family).load(name)
    (offered,) = (each for each in registry.installed() if (each.family, each.name) == (family, name))
    described: dict[str, Any] = {
        "kind": kind,
        "package": offered.package,
        "version": offered.version,
        "target": offered.target,
        "doc": inspect.cleandoc(model.__doc__ or ""),
        "fields": [_field(key) for key in keys(model)],
        "used_in": usage().get((family, name), []),
    }
    if family in OPLESS:
        return described
    trace, reason = _trace(family, name, model, values)
    if trace is None:
        return {**described, "not_traced": reason}
    ops = Counter(node.op.op_name for _, node in trace.nodes)
    return {
        **described,
        "traced_in": trace.where,
        "traced_with": trace.keys,
        "ops": dict(sorted(ops.items())),
        "weights": [
            {"name": path, "shape": list(p.shape), "dtype": p.dtype, "trainable": p.trainable}
            for path, p in trace.weights()
        ],
        "states": [
            {
                "name": path,
                "shape": [_plain(d) for d in s.allocated],
                "growth": s.growth,
                "role": s.role,
                "dtype": s.dtype,
            }
            for path, s in trace.states()
        ],
        "targets": {target: _missing(target, trace) for target in TARGETS},
    }


def _field(key: Key) -> dict[str, Any]:
    """A key as data, without the marks of Markdown."""
    plain = {name: text.replace("`", "") for name, text in asdict(key).items()}
    is_required = key.default == REQUIRED
    return {**plain, "default": "required" if is_required else plain["default"], "required": is_required}


def _trace(family: str, name: str, model: type[Kind], values: Sequence[str]) -> tuple[Trace | None, str]:
    """As it is in a shipped spec, or, with ``values`` or where none uses it, in a tiny one."""
    if not values and (found := in_shipped_specs(model)) is not None:
        return found, ""
    try:
        return in_a_spec(family, name, model, values), ""
    except ArchcError as error:
        if values:
            raise
        return None, f"its keys can't be guessed; give them with --set KEY=VALUE ({error})"


def _missing(target: str, trace: Trace) -> dict[str, Any]:
    """Whether each op has a lowering to a target."""
    known = registry.names(target)
    used = {node.op.op_name for _, node in trace.nodes}
    missing = sorted(used.difference(known))
    if target != "torch":
        # A torch module of somebody's own is lowered to other targets by what it brings itself.
        places = {lowering_name(str(getattr(n.op, "module", ""))) for _, n in trace.nodes if n.op.op_name == "opaque"}
        missing += sorted(places.difference(known))
    return {"lowered": not missing, "missing": missing}


def _plain(dim: Any) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def print_description(found: dict[str, Any]) -> None:
    """The data of ``describe`` as text."""
    click.secho(f"{found['kind']}  {found['package']} {found['version']}  {found['target']}", bold=True)
    click.echo(found["doc"])
    rows = [(key["name"], key["type"], key["default"], key["meaning"]) for key in found["fields"]]
    if rows:
        print_heading("keys")
        print_table(("key", "type", "default", "meaning"), rows, left=4)
    print_heading("used in")
    click.echo(f"  {shortened_list(found['used_in']) or 'no shipped spec'}")
    if "ops" not in found and "not_traced" not in found:
        return
    if "not_traced" in found:
        print_heading("not traced")
        click.echo(f"  {found['not_traced']}")
        return
    print_heading(f"comes to, in {found['traced_in']}: {found['traced_with'] or 'no keys'}")
    print_pairs(
        [
            ("ops", ", ".join(f"{op} x {count}" if count > 1 else op for op, count in found["ops"].items()) or "none"),
            *(("weight" if i == 0 else "", _weight(weight)) for i, weight in enumerate(found["weights"])),
            *(("state" if i == 0 else "", _state(state)) for i, state in enumerate(found["states"])),
            *((target, _targeted(said)) for target, said in found["targets"].items()),
        ],
        left=2,
    )


def _weight(weight: dict[str, Any]) -> str:
    notes = [weight["dtype"]] if weight["dtype"] != "model" else []
    notes += [] if weight["trainable"] else ["not trained"]
    return f"{weight['name']} {weight['shape']}" + (f" ({', '.join(notes)})" if notes else "")


def _state(state: dict[str, Any]) -> str:
    shape = ", ".join(str(dim) for dim in cast("list[int | str]", state["shape"]))
    dtype = "" if state["dtype"] == "model" else f", {state['dtype']}"
    return f"{state['name']} [{shape}] ({state['growth']}, {state['role']}{dtype})"


def _targeted(said: dict[str, Any]) -> str:
    if said["lowered"]:
        return "every op has a lowering"
    return f"no lowering for {', '.join(said['missing'])}"
