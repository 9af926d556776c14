"""From a path in a file to the class that rules the mapping there, its family and its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticCustomError

from archc import registry
from archc.errors import PluginError
from archc.spec.kind import Kind
from archc.spec.merge import NAMED_SECTIONS
from archc.spec.nodes import Node, Path
from archc.spec.schema import Spec
from archc.spec.slots import Slot

Model = type[BaseModel]

_FAMILIES = {"expert": "ffn", "mtp": "stack", "encoder": "stack", "decoder": "stack"}
_TITLES = {"mixer": "a mixer", "ffn": "an ffn", "spec": "the spec"}


def family_at(path: Path) -> str:
    """The family of the mapping at a path, by its place: ``mixer``, ``position``, ``stack``; ``spec`` at the top."""
    if not path:
        return "spec"
    if len(path) == 2 and path[0] in NAMED_SECTIONS:
        return "mixer" if path[0] == "mixers" else "ffn"
    return _FAMILIES.get(str(path[-1]), str(path[-1]))


def title(family: str) -> str:
    """How a message calls a mapping of a family."""
    return _TITLES.get(family, family)


def model_at(root: Node, path: Path) -> Model | None:
    """The class whose fields are the keys of the mapping at ``path``; None where its kind isn't known."""
    model: Model | None = Spec
    entry: Slot | None = None
    for at, step in enumerate(path):
        node = root.at(path[: at + 1])
        if entry is not None:
            model, entry = _kind_of(entry, node), None
            continue
        field = None if model is None else model.model_fields.get(str(step))
        if field is None:
            return None
        slot = next(_slots((field.annotation, *field.metadata)), None)
        if slot is not None and get_origin(field.annotation) is dict:
            entry = slot
        elif slot is not None:
            model = _kind_of(slot, node)
        else:
            model = next(models_in(field.annotation), None)
    return None if entry is not None else model


def installed_models(family: str) -> Iterator[type[Kind]]:
    """The classes of a family that can be loaded."""
    slot = Slot(family)
    for name in registry.names(family):
        try:
            yield slot.load(name)
        except PluginError:
            # A broken plugin is reported when a spec uses it; it must not hide the mistakes of one that doesn't.
            continue


def _kind_of(slot: Slot, node: Node | None) -> Model | None:
    if node is None:
        return None
    stated = node.child(slot.key)
    name = node.value if isinstance(node.value, str) else slot.default_kind if stated is None else stated.value
    try:
        return slot.load(name) if isinstance(name, str) else None
    except PydanticCustomError:
        return None


def _slots(parts: Any) -> Iterator[Slot]:
    for part in parts:
        if isinstance(part, Slot):
            yield part
        yield from _slots(get_args(part))


def models_in(annotation: Any) -> Iterator[Model]:
    """The classes of mappings in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)
