"""Which stacks a model has, what their tokens may see, and which mixers fit there; works on plain data as well as on kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from archc import registry
from archc.spec.faults import fault
from archc.spec.kind import Kind
from archc.spec.near import listed
from archc.spec.nodes import is_mapping
from archc.spec.schedule import Found, placed
from archc.spec.slots import Slot

STACKS = ("stack", "encoder", "decoder")
"""Sections that are the model; ``mtp`` is counted apart."""

MASKS = ("causal", "bidirectional", "prefix")

DEFAULT_MASKS = {"stack": "causal", "encoder": "bidirectional", "decoder": "causal", "mtp": "causal"}
"""Section -> what a token of it sees unless the spec says otherwise."""

_MIXER, _BLOCK = Slot("mixer"), Slot("block")


def check_sections(spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]]) -> Iterator[Found]:
    """A mistake for each section, mask and branch that the others exclude.

    What a mixer or a block says of itself is asked through the attributes of their families (``archc.families``).
    """
    given = [name for name in STACKS if spec.get(name) is not None]
    if not given:
        yield ("stack",), PydanticCustomError("missing", "stack is required")
    if "stack" in given and len(given) > 1:
        others = listed([name for name in given if name != "stack"])
        hint = "A decoder-only model has a stack, any other an encoder, or an encoder and a decoder"
        yield ("stack",), fault(f"stands beside {others}", hint, code="sections")
    elif given == ["decoder"]:
        hint = "A decoder-only model has a stack"
        yield ("decoder",), fault("a decoder reads an encoder, and there is none", hint, code="sections")
    if spec.get("mtp") is not None and "stack" not in given and given:
        yield ("mtp",), fault("predicts further tokens of a stack, and there is none", code="sections")
    for name, stack in stacks.items():
        yield from _check_cross(name, stack, spec)
        yield from _check_mask(name, stack, spec)


def _check_cross(section: str, stack: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Found]:
    cross = stack.get("cross")
    if section != "decoder":
        if cross is not None:
            hint = "A section decoder has it, beside an encoder"
            yield (section, "cross"), fault("reads an encoder, which no layer here does", hint, code="sections")
        return
    if cross is None and not any(getattr(cls, "reads_encoder", False) for _, cls in _placed(stack, spec)):
        hint = "A pattern of mixers that read the encoder"
        yield (section,), fault("cross is required", hint, code="track_missing")
    if cross is not None and stack.get("layers") is None:
        for name in sorted(placed({"mixer": cross})):
            cls = _class(_MIXER, _entry(spec, name))
            if cls is not None and not getattr(cls, "can_cross", False):
                message = f"{name}, which is {cls.kind_name}, can't read an encoder"
                yield (section, "cross"), fault(message, code="sections")
        block = _class(_BLOCK, stack.get("block"))
        if block is not None and not getattr(block, "takes_cross", False):
            message = f"{block.kind_name} has no place for cross, a branch that reads the encoder"
            yield (section, "block"), fault(message, code="sections")


def _check_mask(section: str, stack: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Found]:
    mask = stack.get("mask") or DEFAULT_MASKS[section]
    if mask not in MASKS:
        # The key's own type says so.
        return
    if section == "encoder" and mask != "bidirectional":
        yield (section, "mask"), fault(f"an encoder sees everything (found {mask})", "Call it a stack", code="sections")
    elif section in ("decoder", "mtp") and mask != "causal":
        message = f"{section} layers see themselves and what came before (found {mask})"
        yield (section, "mask"), fault(message, code="sections")
    else:
        for name, cls in _placed({**stack, "cross": None}, spec):
            masks: tuple[str, ...] = getattr(cls, "masks", ("causal",))
            if mask not in masks:
                message = f"{name}, which is {cls.kind_name}, takes the mask {listed(masks, 'or')} (found {mask})"
                hint = "" if stack.get("mask") or section != "encoder" else "An encoder is bidirectional"
                yield (section, "mask") if stack.get("mask") else (section,), fault(message, hint, code="sections")


def _placed(stack: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[tuple[str, type[Kind]]]:
    """The mixers that a stack's patterns place, where their classes are known."""
    for name in sorted(placed(stack)):
        cls = _class(_MIXER, _entry(spec, name))
        if cls is not None:
            yield name, cls


def _entry(spec: Mapping[str, Any], name: str) -> Any:
    mixers = spec.get("mixers")
    return mixers.get(name) if is_mapping(mixers) else None


def _class(slot: Slot, value: Any) -> type[Kind] | None:
    if value is None or isinstance(value, Kind):
        return None if value is None else type(value)
    try:
        name = slot.name_in(value)
        # Asked first, since an error that lists what there is would be made for nothing.
        return slot.load(name) if registry.find(slot.family, name) is not None else None
    except PydanticCustomError:
        return None
