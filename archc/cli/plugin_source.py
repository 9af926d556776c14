"""What a plugin says of itself in the first line of its documentation, read from its source without importing it."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path


def first_line(target: str) -> str:
    """The first line of the docstring of ``module:Name``; empty where there is none, or no source to read."""
    module, _, name = target.partition(":")
    return _documented(module).get(name, "")


@cache
def _documented(module: str) -> dict[str, str]:
    path = _file(module)
    if path is None:
        return {}
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        # A package that is broken says so when it is used.
        return {}
    named = (node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return {node.name: (ast.get_docstring(node) or "").split("\n", 1)[0] for node in named}


def _file(module: str) -> Path | None:
    """The source of a module. ``importlib.util.find_spec`` would import the packages that it lies in."""
    found: ModuleSpec | None = None
    name, places = "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = _spec(name, places)
        if found is None:
            return None
        places = found.submodule_search_locations
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return None
    return Path(found.origin)


def _spec(name: str, places: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            found = finder.find_spec(name, places)
        except (AttributeError, ImportError, OSError, ValueError):
            continue
        if found is not None:
            return found
    return None
