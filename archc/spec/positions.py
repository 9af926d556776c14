"""Positions that don't fit where they stand; works on plain data as well as on valid kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from archc import registry
from archc.spec.faults import fault
from archc.spec.kind import Kind
from archc.spec.nodes import Path, is_mapping
from archc.spec.schedule import Found, placed
from archc.spec.slots import Slot

_POSITION, _MIXER = Slot("position"), Slot("mixer")
_EMBEDDING = Slot("embedding", default_kind="token")


def check_positions(spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]]) -> Iterator[Found]:
    """A mistake for each position that is added to the embedding and stands in a mixer, or needs a length that isn't stated.

    What a position says of itself is asked through the attributes of its family (``archc.families``).
    """
    for path, value in dict(_added(spec, stacks)).items():
        cls = _class(value)
        counted = getattr(_class(_embedding(path, spec, stacks), _EMBEDDING), "has_length", False)
        if cls is None or not getattr(cls, "needs_length", False) or counted:
            continue
        if spec.get("max_position_embeddings") is None:
            hint = "State max_position_embeddings"
            yield path, fault(f"{cls.kind_name} has a row a position, and nothing says how many", hint, code="position")
    mixers = spec.get("mixers")
    for name, mixer in mixers.items() if is_mapping(mixers) else ():
        cls = _class(_own(mixer))
        if cls is not None and getattr(cls, "is_added", False):
            message = f"{cls.kind_name} is added to the embedding, once for all mixers"
            hint = "State it as the spec's or the stack's position"
            yield ("mixers", name, "position"), fault(message, hint, code="position")
        yield from _misplaced_slopes(str(name), mixer, spec, stacks)


def _added(spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Path, Any]]:
    """The positions that stacks may add to their embeddings, their own or the spec's, and where they stand."""
    for section in (name for name in stacks if name != "mtp") if stacks else ("stack",):
        yield _default(section, spec, stacks)


def _default(section: str, spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]]) -> tuple[Path, Any]:
    own = stacks[section].get("position") if section in stacks else None
    return (("position",), spec.get("position")) if own is None else ((section, "position"), own)


def _embedding(path: Path, spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]]) -> Any:
    """The embedding to which the position at a path is added."""
    own = stacks[str(path[0])].get("embedding") if len(path) > 1 else None
    return spec.get("embedding") if own is None else own


def _misplaced_slopes(
    name: str, mixer: Any, spec: Mapping[str, Any], stacks: Mapping[str, Mapping[str, Any]]
) -> Iterator[Found]:
    """A slope on the scores of a mixer that has no place for it, by its own position or, where it is placed, the stack's."""
    cls = _class(mixer, _MIXER)
    if cls is None or not getattr(cls, "refuses_slopes", False):
        return
    own = _own(mixer)
    if own is not None:
        defaults = {("mixers", name, "position"): own}
    else:
        defaults = dict(_default(section, spec, stacks) for section, stack in stacks.items() if name in placed(stack))
    for path, value in defaults.items():
        position = _class(value)
        if position is not None and getattr(position, "has_slopes", False):
            message = (
                f"{position.kind_name} adds to the scores, and {name}, which is {cls.kind_name}, has no place for it"
            )
            hint = f"State mixers.{name}.position: rope or none"
            yield path, fault(message, hint, code="position")


def _own(mixer: Any) -> Any:
    return mixer.get("position") if is_mapping(mixer) else getattr(mixer, "position", None)


def _class(value: Any, slot: Slot = _POSITION) -> type[Kind] | None:
    """The class of a kind, where its name can be told."""
    if value is None or isinstance(value, Kind):
        return None if value is None else type(value)
    try:
        name = slot.name_in(value)
        # Asked first, since an error that lists what there is would be made for nothing.
        return slot.load(name) if registry.find(slot.family, name) is not None else None
    except PydanticCustomError:
        return None
