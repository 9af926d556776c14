"""Schemas of ops: onnx's own, and com.microsoft's as shipped beside this file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import onnx

from archc_exporters.onnx.placement.tables import RELEASE, load

CONTRIB = "com.microsoft"
Option = Literal["Single", "Optional", "Variadic"]


@dataclass(frozen=True, slots=True)
class Formal:
    """One formal input or output; ``type`` is a type variable, or a type where only one is allowed."""

    name: str
    type: str
    option: Option


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What a node of an op may look like, at one version.

    Attributes:
        has_function: whether other nodes can replace one that no kernel takes.
        body: op types of the function of a contrib op, whose function onnx itself does not know.
    """

    domain: str
    op: str
    since: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attributes: frozenset[str]
    has_function: bool
    body: tuple[str, ...] = ()


def short_type(type_: str) -> str:
    """``float`` for ``tensor(float)``; other types keep their brackets."""
    inner = type_.removeprefix("tensor(").removesuffix(")") if type_.startswith("tensor(") else type_
    return inner.replace(" ", "")


@cache
def find_schema(domain: str, op: str, opset: int) -> Schema | None:
    """The schema that an opset of the domain has for an op; None where it knows no such op."""
    if domain == CONTRIB:
        return _contrib(op)
    try:
        return _of_onnx(onnx.defs.get_schema(op, opset, domain))
    except onnx.defs.SchemaError:
        return None


def _contrib(op: str) -> Schema | None:
    entry = load(f"contrib_schemas-{RELEASE}.json")["ops"].get(op)
    if entry is None:
        return None
    return Schema(
        domain=CONTRIB,
        op=op,
        since=1,
        inputs=tuple(Formal(*formal) for formal in entry["in"]),
        outputs=tuple(Formal(*formal) for formal in entry["out"]),
        attributes=frozenset(entry["attributes"]),
        has_function="body" in entry,
        body=tuple(entry.get("body", ())),
    )


def _of_onnx(schema: Any) -> Schema:
    only = {c.type_param_str: list(c.allowed_type_strs) for c in schema.type_constraints}

    def formal(parameter: Any) -> Formal:
        allowed = only.get(parameter.type_str)
        is_variable = allowed is not None and len(allowed) > 1
        type_ = parameter.type_str if is_variable else short_type(allowed[0] if allowed else parameter.type_str)
        return Formal(parameter.name, type_, parameter.option.name)

    return Schema(
        domain=schema.domain,
        op=schema.name,
        since=schema.since_version,
        inputs=tuple(map(formal, schema.inputs)),
        outputs=tuple(map(formal, schema.outputs)),
        attributes=frozenset(schema.attributes),
        has_function=schema.has_function or schema.has_context_dependent_function,
    )


def formal_of(formals: tuple[Formal, ...], number: int) -> Formal | None:
    """The formal that the argument of this number belongs to; a variadic one takes all that follow."""
    if number < len(formals):
        return formals[number]
    return formals[-1] if formals and formals[-1].option == "Variadic" else None
