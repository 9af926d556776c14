"""The language as a JSON Schema, for editors: every section, and every installed kind with its keys.

A file that extends another states only what differs, so it is judged by a second set of definitions in which nothing is required.
"""

from __future__ import annotations

from typing import Any

from archc import registry
from archc.spec.merge import EXTENDS, NAMED_SECTIONS
from archc.spec.near import with_article
from archc.spec.nodes import is_list, is_mapping
from archc.spec.patterns import NAME, NONE
from archc.spec.schema import Spec
from archc.spec.sections import STACKS
from archc.spec.slots import MARKER, Slot
from archc.spec.values import TYPE_NAME

Schema = dict[str, Any]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_AMENDS = "amends."
_NULL: Schema = {"type": "null"}
_PARENT = "Path of another spec, relative to this file, that this one amends."
_SIBLING = "Name of {} whose keys this one takes; keys written here replace those whole."
_TRACKS: list[Schema] = [
    {"required": ["mixer", "ffn"], "properties": {"layers": _NULL}},
    {"required": ["layers"], "properties": {"mixer": _NULL, "ffn": _NULL}},
]
_MODELS: list[Schema] = [
    {"required": ["stack"], "properties": {"encoder": _NULL, "decoder": _NULL}},
    {"required": ["encoder"], "properties": {"stack": _NULL}},
]
_NAMES: Schema = {"pattern": f"^(?!{NONE}$){NAME.pattern}$"}


def json_schema() -> Schema:
    """The schema of a spec file (draft 2020-12)."""
    strict, amending = _Writer(""), _Writer(_AMENDS)
    definitions = {**strict.definitions(), **amending.definitions()}
    return {
        "$schema": _DRAFT,
        "title": "archc spec",
        "type": "object",
        "if": {"required": [EXTENDS]},
        "then": {"$ref": f"#/$defs/{_AMENDS}spec"},
        "else": {"$ref": "#/$defs/spec"},
        "$defs": dict(sorted(definitions.items())),
    }


class _Writer:
    """Writes one set of definitions: each model and each family once, since kinds hold slots that hold kinds."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.done: dict[str, Schema] = {}
        self._known: set[str] = set()
        self._waiting: list[tuple[str, Slot]] = []

    @property
    def requires(self) -> bool:
        """Whether these are the definitions of a file without a parent."""
        return not self.prefix

    def definitions(self) -> dict[str, Schema]:
        """All definitions that a spec can reach."""
        spec = self._model(Spec.model_json_schema(), family="")
        spec["properties"][EXTENDS] = {"description": _PARENT, "type": ["string", "null"]}
        for section in NAMED_SECTIONS:
            family = section.removesuffix("s")
            entry = {"$ref": self._family_ref(Slot(family), entry=True)}
            named = spec["properties"][section]
            spec["properties"][section] = {
                "description": named.get("description", ""),
                "type": "object",
                "propertyNames": _NAMES,
                "additionalProperties": entry,
                **({"minProperties": 1} if self.requires and "minProperties" in named else {}),
            }
        if self.requires:
            self.done["Stack"]["anyOf"] = _TRACKS
            for section in STACKS:
                spec["properties"][section]["anyOf"][0]["required"] = ["block"]
            spec["anyOf"] = _MODELS
        else:
            spec["required"] = ["name"]
        self.done[f"{self.prefix}spec"] = spec
        while self._waiting:
            name, slot = self._waiting.pop()
            self.done[name] = self._family(name, slot)
        return self.done

    def _model(self, schema: Schema, *, family: str) -> Schema:
        """A model's schema; the models it holds become definitions."""
        for name, definition in schema.pop("$defs", {}).items():
            self.done.setdefault(f"{self.prefix}{name}", self._resolved(definition, family))
        return self._resolved(schema, family)

    def _resolved(self, node: Any, family: str) -> Any:
        """The schema with slots as references, and null wherever a key may be left out."""
        if is_list(node):
            return [self._resolved(item, family) for item in node]
        if not is_mapping(node):
            return node
        if MARKER in node:
            return {"$ref": self._family_ref(Slot(**node[MARKER]), inside=family)}
        if "$ref" in node:
            return {"$ref": node["$ref"].replace("#/$defs/", f"#/$defs/{self.prefix}")}
        found: Schema = {
            key: self._resolved(value, family)
            for key, value in node.items()
            if key not in ("title", "default", "properties", TYPE_NAME)
        }
        if "properties" in node:
            required = found.pop("required", [])
            if self.requires and required:
                found["required"] = required
            found["properties"] = {
                key: self._member(value, family, optional=not self.requires or key not in required)
                for key, value in node["properties"].items()
            }
        return found

    def _member(self, schema: Schema, family: str, *, optional: bool) -> Schema:
        meaning: Schema = {"description": schema["description"]} if "description" in schema else {}
        resolved = self._resolved({key: value for key, value in schema.items() if key != "description"}, family)
        if not optional or _NULL in resolved.get("anyOf", ()):
            return {**meaning, **resolved}
        return {**meaning, "anyOf": [resolved, _NULL]}

    def _family_ref(self, slot: Slot, *, entry: bool = False, inside: str = "") -> str:
        """Where a family's alternatives are; a kind inside one of its own family gets keys from it, so none is required."""
        prefix = _AMENDS if slot.family == inside else self.prefix
        name = (
            f"{prefix}{slot.family}" + (f"={slot.default_kind}" if slot.default_kind else "") + ("s" if entry else "")
        )
        # The other set meets the same slots and writes its own.
        if prefix == self.prefix and name not in self._known:
            self._known.add(name)
            self._waiting.append((name, slot))
        return f"#/$defs/{name}"

    def _family(self, name: str, slot: Slot) -> Schema:
        entry = name == f"{self.prefix}{slot.family}s"
        alternatives: list[Schema] = [] if not entry else [_NULL]
        bare: list[str] = []
        for kind in registry.names(slot.family):
            schema = self._model(slot.load(kind).model_json_schema(), family=slot.family)
            required = schema.pop("required", [])
            if not required:
                bare.append(kind)
            # Merged into the kind's own properties: beside an allOf branch that forbids extras every valid spec would be wrong.
            properties = {slot.key: {"const": kind}, **schema["properties"]}
            if entry:
                properties[EXTENDS] = {"description": _SIBLING.format(with_article(slot.family)), "type": "string"}
            whole = {**schema, "properties": properties}
            if self.requires and entry:
                alternatives.append({**whole, "required": [EXTENDS]})
            if self.requires:
                whole["required"] = required if kind == slot.default_kind else [slot.key, *required]
            alternatives.append(whole)
        if bare:
            alternatives.append({"enum": bare})
        return {"anyOf": alternatives}
