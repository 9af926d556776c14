"""Where kinds are used among the shipped specs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, cast

from pydantic import BaseModel

from archc.errors import ArchcError
from archc.spec.kind import Kind
from archc.spec.load import load_spec
from archc.spec.schema import Spec
from archc.spec.shipped import shipped_specs


def kinds_in(value: Any) -> Iterator[Kind]:
    """Every kind that a spec names, those in the keys of other kinds too."""
    if isinstance(value, BaseModel):
        if isinstance(value, Kind) and value.kind_name:
            yield value
        for _, inner in value:
            yield from kinds_in(inner)
    elif isinstance(value, dict):
        for inner in cast("dict[str, Any]", value).values():
            yield from kinds_in(inner)


@cache
def shipped() -> tuple[tuple[str, Spec], ...]:
    """(name, spec) of the shipped specs, but for those that an installed package has broken."""
    found: list[tuple[str, Spec]] = []
    for name, path in shipped_specs().items():
        try:
            found.append((name, load_spec(path)))
        except ArchcError:
            continue
    return tuple(found)


def usage() -> dict[tuple[str, str], list[str]]:
    """(family, kind) -> names of the shipped specs that name it."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, spec in shipped():
        for used in dict.fromkeys((kind.family, kind.kind_name) for kind in kinds_in(spec)):
            found.setdefault(used, []).append(name)
    return found
