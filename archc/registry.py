"""Entry points to kinds, ops, lowerings and exporters. Listing imports nothing; a name is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any

from archc.errors import PluginError

FAMILIES = (
    "mixer",
    "ffn",
    "norm",
    "position",
    "block",
    "head",
    "embedding",
    "cache",
    "tokenizer",
    "router",
    "scaling",
    "score",
)
"""Families whose members a spec names; ``torch``, ``onnx``, ``exporter``, ``runtime`` and ``checkpoint`` are reached by code."""

_extra: dict[tuple[str, str], Any] = {}
_loaded: dict[tuple[str, str], Any] = {}


@dataclass(frozen=True, slots=True)
class Installed:
    """One registered plugin: its family, its name, where its code is, and the package that brought it."""

    family: str
    name: str
    target: str
    package: str
    version: str


@cache
def _scan() -> dict[str, dict[str, list[tuple[EntryPoint, str, str]]]]:
    """family -> name -> [(entry point, package, version)]; every distribution is read once, nothing is imported.

    A distribution that appears twice on the path (an editable install beside its own metadata) counts once.
    """
    found: dict[str, dict[str, list[tuple[EntryPoint, str, str]]]] = {}
    seen: set[str] = set()
    for dist in distributions():
        text = dist.read_text("entry_points.txt")
        if text is None or "[archc." not in text:
            continue
        package, version = _identity(dist)
        if package in seen:
            continue
        seen.add(package)
        for point in dist.entry_points:
            if point.group.startswith("archc."):
                family = found.setdefault(point.group.removeprefix("archc."), {})
                family.setdefault(point.name, []).append((point, package, version))
    return found


def _identity(dist: Distribution) -> tuple[str, str]:
    """(name, version). ``dist.metadata`` would load a parser of e-mails and read the whole description, for two lines."""
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    headers: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(": ")
        headers[key] = value
    return headers.get("Name", "unknown"), headers.get("Version", "0")


def names(family: str) -> list[str]:
    """Sorted names registered in ``family``, without importing any of them."""
    found = set(_scan().get(family, {}))
    found.update(name for extra_family, name in _extra if extra_family == family)
    return sorted(found)


def installed() -> list[Installed]:
    """Everything that is registered, sorted, without importing any of it."""
    return [
        Installed(family, name, point.value, package, version)
        for family, members in sorted(_scan().items())
        for name, points in sorted(members.items())
        for point, package, version in points
    ]


def find(family: str, name: str) -> Any | None:
    """The registered object, or None when no package offers ``name``.

    Raises:
        PluginError: two packages offer the name, or the package's code can't be imported.
    """
    key = (family, name)
    if key in _extra:
        return _extra[key]
    if key in _loaded:
        return _loaded[key]
    points = _scan().get(family, {}).get(name, [])
    if not points:
        return None
    if len(points) > 1:
        both = " and ".join(f"{package} ({point.value})" for point, package, _ in points)
        raise PluginError(f"{family} {name!r} is offered by {both}; uninstall one of them")
    point, package, version = points[0]
    try:
        _loaded[key] = point.load()
    except Exception as error:
        # Importing runs someone else's code, which can fail in any way.
        raise PluginError(
            f"{family} {name!r} of {package} {version} can't be loaded from {point.value}: {type(error).__name__}: {error}"
        ) from error
    return _loaded[key]


def load(family: str, name: str) -> Any:
    """The registered object.

    Raises:
        PluginError: the name is unknown (the message lists near names), doubled or broken.
    """
    found = find(family, name)
    if found is None:
        # Only an error needs it, and it takes a millisecond to load.
        import difflib

        known = names(family)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise PluginError(f"unknown {family} {name!r}; installed: {', '.join(known) or 'none'}.{hint}")
    return found


def provider(family: str, name: str) -> tuple[str, str] | None:
    """(package, version) that offers ``name``, or None."""
    points = _scan().get(family, {}).get(name, [])
    return points[0][1:] if points else None


@contextmanager
def temporary(plugins: Mapping[tuple[str, str], Any]) -> Generator[None]:
    """Register (family, name) -> object for the length of a ``with`` block: for tests and notebooks."""
    before = dict(_extra)
    for family, name in plugins:
        if name in names(family):
            raise PluginError(f"{family} {name!r} is registered already")
    _extra.update(plugins)
    try:
        yield
    finally:
        _extra.clear()
        _extra.update(before)
