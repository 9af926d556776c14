"""Every key of the language as Markdown tables: the sections, then each installed kind, in its author's words."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from archc import registry
from archc.errors import PluginError
from archc.spec.described import Model, summary
from archc.spec.kind import Kind
from archc.spec.nodes import is_mapping
from archc.spec.places import models_in
from archc.spec.schema import Spec, Stack
from archc.spec.slots import MARKER, Slot
from archc.spec.values import TYPE_NAME, Scale

Schema = dict[str, Any]

_DEFAULT = "Default: "
REQUIRED = "**required**"
_COLUMNS = "| key | type | default | meaning |\n|---|---|---|---|"
_ONE_WORD = {"integer": "int", "number": "float", "string": "text", "boolean": "bool", "null": "null"}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
_HEADINGS = {"ffn": "Feed-forwards", "cache": "Cache policies", "scaling": "Rope scalings"}


def manual() -> str:
    """The tables, under headings of the third level."""
    parts = ["### The file", _table(Spec), "### Stack: `stack`, `encoder`, `decoder`, `mtp`", _table(Stack)]
    for family in registry.FAMILIES:
        if registry.names(family):
            parts += _family(family)
    # Docstrings mark code as reStructuredText does.
    return "\n\n".join(parts).replace("``", "`") + "\n"


def _family(family: str) -> Iterator[str]:
    """A family: what it is, the keys that all its kinds take, and each kind with its own."""
    yield f"### {_HEADINGS.get(family, f'{family.capitalize()}s')}"
    kinds = {name: Slot(family).load(name) for name in registry.names(family)}
    base = _base(next(iter(kinds.values())))
    key = "policy" if family == "cache" else "kind"
    yield f"{summary(base)} Stated as `{key}`."
    shared = [name for name in base.model_fields if any(name not in _own(kind) for kind in kinds.values())]
    if shared:
        yield f"Keys of every {'policy' if family == 'cache' else family}:"
        yield _table(base, shared)
    for name, kind in kinds.items():
        yield f"#### `{name}`"
        yield summary(kind)
        own = [field for field in kind.model_fields if field not in shared]
        if own:
            yield _table(kind, own)


def _base(kind: type[Kind]) -> type[Kind]:
    """The class of a kind's family."""
    base = next((base for base in kind.__mro__ if Kind in base.__bases__), None)
    if base is None or not issubclass(base, Kind):
        raise PluginError(f"{kind.__name__} is of no family")
    return base


def _own(kind: type[Kind]) -> set[str]:
    """The fields that a kind states itself, or takes from another kind."""
    base = _base(kind)
    above = kind.__mro__[: kind.__mro__.index(base)]
    return {name for owner in above for name in inspect.get_annotations(owner)}


def _table(model: Model, names: list[str] | None = None) -> str:
    return "\n".join([_COLUMNS, *_rows(model, names or list(model.model_fields), prefix="")])


@dataclass(frozen=True)
class Key:
    """A key as a reader sees it; ``default`` says that it is required where it is."""

    name: str
    type: str
    default: str
    meaning: str


def keys(model: Model) -> Iterator[Key]:
    """Every key of a kind or a section, those of its nested mappings under dotted names."""
    yield from _keys(model, list(model.model_fields), prefix="")


def _rows(model: Model, names: list[str], *, prefix: str) -> Iterator[str]:
    for key in _keys(model, names, prefix=prefix):
        cells = (f"`{key.name}`", key.type, key.default, key.meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _keys(model: Model, names: list[str], *, prefix: str) -> Iterator[Key]:
    schema = model.model_json_schema()
    for name in names:
        field = model.model_fields[name]
        key = field.alias or name
        member: Schema = schema["properties"][key]
        text: str = member.get("description", "")
        meaning, said, default = text.partition(_DEFAULT)
        if not said:
            default = REQUIRED if field.is_required() else f"`{_plain(field.default)}`"
        yield Key(f"{prefix}{key}", _type(member), default.removesuffix("."), meaning.strip())
        for inner in _sections(field.annotation):
            yield from _keys(inner, list(inner.model_fields), prefix=f"{prefix}{key}.")


def _sections(annotation: Any) -> Iterator[Model]:
    """The nested mappings of a key that have no kind; the spec's own sections have tables of their own."""
    yield from (model for model in models_in(annotation) if model is not Stack)


def _plain(default: Any) -> str:
    if isinstance(default, Scale):
        default = default.plain()
    if isinstance(default, bool):
        return str(default).lower()
    if default is None:
        return "null"
    return str(default) or "empty"


def _type(schema: Mapping[str, Any]) -> str:
    """A key's type in a word or a few."""
    if TYPE_NAME in schema:
        return schema[TYPE_NAME]
    if MARKER in schema:
        family = schema[MARKER]["family"]
        return "cache policy" if family == "cache" else f"{family} kind"
    if "$ref" in schema:
        return "stack" if schema["$ref"].endswith("/Stack") else "mapping"
    if "anyOf" in schema:
        types: list[str] = [_type(part) for part in schema["anyOf"]]
        return " or ".join(sorted({*types} - {"null"}, key=types.index))
    if "const" in schema:
        return _value(schema["const"])
    if "enum" in schema:
        return ", ".join(map(_value, schema["enum"]))
    if "prefixItems" in schema:
        return f"[{', '.join(map(_type, schema['prefixItems']))}]"
    kind: str = schema.get("type", "")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        inner: Any = schema.get("additionalProperties")
        return f"map of name to {_type(inner)}" if is_mapping(inner) else "mapping"
    bounds = [f"{sign} {schema[bound]:g}" for bound, sign in _BOUNDS.items() if bound in schema]
    return " ".join([_ONE_WORD.get(kind, kind), ", ".join(bounds)]).strip()


def _value(value: Any) -> str:
    return f"`{value}`"
