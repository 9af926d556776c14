"""What two specs say otherwise: keys, and which mixer and ffn each layer has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archc.spec.merge import kind_key
from archc.spec.nodes import dotted, is_mapping
from archc.spec.schedule import LayerPlan
from archc.spec.schema import Spec

UNCOMPARED = ("spec_version", "name", "description")
"""Keys that say nothing about the model."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key of the resolved spec whose value differs; a section that only one of them has is one change, with all in it.

    ``in_a`` and ``in_b`` say where it is stated or has a default; the value is None where it isn't.
    """

    path: str
    a: Any
    b: Any
    in_a: bool = True
    in_b: bool = True

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"path": self.path, "a": self.a, "b": self.b}
        return found if self.in_a and self.in_b else {**found, "only_in": "a" if self.in_a else "b"}


@dataclass(frozen=True, slots=True)
class LayerChange:
    """Layers of a section, counted from 0, that have other sub-layers; None where one of the stacks has no such layer."""

    section: str
    layers: tuple[int, ...]
    a: str | None
    b: str | None

    def to_json(self) -> dict[str, Any]:
        return {"section": self.section, "layers": list(self.layers), "a": self.a, "b": self.b}


def key_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[KeyChange]:
    """The changes between two resolved trees, in the first one's order; what is new follows in its section."""
    return list(_changes(a, b, ()))


def _changes(a: Mapping[str, Any], b: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[KeyChange]:
    for key in (*a, *(key for key in b if key not in a)):
        here = (*path, key)
        if not path and key in UNCOMPARED:
            continue
        if key not in a or key not in b:
            yield KeyChange(dotted(here), a.get(key), b.get(key), key in a, key in b)
            continue
        one, other = a[key], b[key]
        if is_mapping(one) and is_mapping(other) and _kind(one, here) == _kind(other, here):
            yield from _changes(one, other, here)
        elif one != other:
            yield KeyChange(dotted(here), one, other)


def _kind(section: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The kind that a section states: the keys of two kinds have nothing to do with each other."""
    key = kind_key(path)
    return section.get(key) if key else None


def layer_changes(a: Spec, b: Spec) -> list[LayerChange]:
    """Layers whose sub-layers have other names or kinds; equal changes are one, wherever their layers stand."""
    sections = dict.fromkeys((*_schedules(a), *_schedules(b)))
    found: list[LayerChange] = []
    for section in sections:
        one, other = _schedules(a).get(section, []), _schedules(b).get(section, [])
        runs: dict[tuple[str | None, str | None], list[int]] = {}
        for index in range(max(len(one), len(other))):
            pair = (one[index] if index < len(one) else None, other[index] if index < len(other) else None)
            if pair[0] != pair[1]:
                runs.setdefault(pair, []).append(index)
        found += [LayerChange(section, tuple(layers), *pair) for pair, layers in runs.items()]
    return found


def layer_counts(spec: Spec) -> dict[str, dict[str, int]]:
    """Section -> sub-layers of a layer, as ``kda + moe`` -> how many layers have them."""
    found: dict[str, dict[str, int]] = {}
    for section, layers in _schedules(spec).items():
        counts = found[section] = {}
        for layer in layers:
            counts[layer] = counts.get(layer, 0) + 1
    return found


def _schedules(spec: Spec) -> dict[str, list[str]]:
    plans = {section: spec.schedule(section) for section in spec.stacks()}
    if spec.mtp is not None:
        plans["mtp"] = spec.mtp_schedule()
    return {section: [_named(plan, spec) for plan in layers] for section, layers in plans.items()}


def _named(plan: LayerPlan, spec: Spec) -> str:
    """``attn (gqa) + mlp (swiglu)``: the names, with kinds that are other words."""
    kinds = {**spec.mixers, **spec.ffns}
    names = [name for name in (plan.mixer, plan.cross, plan.ffn) if name is not None]
    return " + ".join(name if name == (kind := kinds[name].kind_name) else f"{name} ({kind})" for name in names)
