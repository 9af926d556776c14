"""Mixers that read keys and values of earlier layers: whose, and every mistake in saying so; works on plain data as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from archc.spec.caches import Made, kind_of
from archc.spec.faults import fault
from archc.spec.near import listed, nearest
from archc.spec.nodes import is_mapping
from archc.spec.patterns import MAX_LAYERS
from archc.spec.schedule import Found, LayerPlan, Names, check_stack, placed, plans
from archc.spec.sections import DEFAULT_MASKS
from archc.spec.slots import Slot

KEY = "kv_from"
"""What a mixer calls the one whose keys and values it reads."""

_MIXER = Slot("mixer")


def owning_layers(layers: Sequence[LayerPlan], readers: Mapping[str, str]) -> dict[int, int]:
    """Layer -> the nearest earlier layer whose keys and values it reads; ``readers`` maps a mixer to the one it reads.

    A layer that finds none is left out.
    """
    latest: dict[str, int] = {}
    found: dict[int, int] = {}
    for index, layer in enumerate(layers):
        owner = readers.get(layer.mixer or "")
        if owner in latest:
            found[index] = latest[owner]
        if layer.mixer is not None:
            latest[layer.mixer] = index
    return found


def check_sharing(spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]], names: Names) -> Iterator[Found]:
    """A mistake for each mixer that reads what isn't there, or can't be read by it.

    What a mixer says of itself is asked through the methods of its family (``archc.families``).
    """
    mixers = spec.get("mixers")
    if not is_mapping(mixers):
        return
    readers = {name: owner for name, value in mixers.items() if isinstance(owner := _stated(value), str)}
    for name, owner in tuple(readers.items()):
        message, hint = _objection(name, owner, mixers)
        if message:
            yield ("mixers", name, KEY), fault(message, hint, code="sharing")
            del readers[name]
    if readers:
        for section, stack in stacks.items():
            yield from _check_stack(section, stack, names, readers)


def _objection(name: str, owner: str, mixers: Mapping[str, Any]) -> tuple[str, str]:
    """(what is wrong with one mixer reading another, a hint); empty where nothing is."""
    if owner not in mixers:
        near = nearest(owner, tuple(str(other) for other in mixers))
        return f"no mixer is called {owner}", f"Did you mean {near}?" if near else ""
    if (further := _stated(mixers[owner])) is not None:
        if owner == name:
            return "a mixer can't read its own keys and values", "Two mixers, of which the second extends the first"
        return f"{owner} has no keys and values, it reads those of {further}", f"{KEY}: {further}"
    reader, read = (kind_of(_MIXER, mixers[each]) for each in (name, owner))
    if reader is None or read is None:
        return "", ""
    if read[0] is not reader[0] or not getattr(read[0], "shared_values", 0):
        kinds = f"{owner}, which is {read[0].kind_name}, keeps nothing that {reader[0].kind_name} could read"
        return kinds, f"{KEY} names a mixer of the same kind"
    return _misfit(reader, read, name, owner, mixers), ""


def _misfit(reader: Made, read: Made, name: str, owner: str, mixers: Mapping[str, Any]) -> str:
    if reader[1] is None or read[1] is None:
        return ""
    if _own(mixers[name], "position") != _own(mixers[owner], "position"):
        return f"{name} reads keys of {owner}, which another position has turned"
    ask = getattr(reader[1], "shared_misfit", None)
    misfit = ask(read[1]) if ask is not None else ""
    return f"{name} {misfit}" if misfit else ""


def _check_stack(section: str, stack: Mapping[str, Any], names: Names, readers: Mapping[str, str]) -> Iterator[Found]:
    reading = sorted(placed({**stack, "cross": None}) & set(readers))
    mask = stack.get("mask") or DEFAULT_MASKS[section]
    if reading and mask == "bidirectional":
        message = f"{listed(reading)}: keys and values of earlier layers are read behind a causal mask only"
        yield (section,), fault(message, code="sharing")
    for name in sorted(placed({"mixer": stack.get("cross")}) & set(readers)):
        message = f"{name} reads keys and values of its own text, not of an encoder"
        yield (section, "cross"), fault(message, code="sharing")
    # What is wrong with the patterns, or with the number of layers, is said elsewhere.
    count = stack.get("num_layers")
    countable = isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= MAX_LAYERS
    if not reading or not countable or any(check_stack(section, stack, names)):
        return
    layers = plans(stack, names)
    found = owning_layers(layers, readers)
    for name in reading:
        lost = next((i for i, layer in enumerate(layers) if layer.mixer == name and i not in found), None)
        if lost is not None:
            message = f"layer {lost} (counted from 0), {name}, reads {readers[name]}, and no earlier layer is one"
            track = "mixer" if stack.get("layers") is None else "layers"
            yield (section, track), fault(message, f"Place {readers[name]} before it", code="sharing")


def _stated(mixer: Any) -> Any:
    return _own(mixer, KEY)


def _own(mixer: Any, key: str) -> Any:
    return mixer.get(key) if is_mapping(mixer) else getattr(mixer, key, None)
