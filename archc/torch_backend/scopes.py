"""One ``nn.Module`` class a distinct scope, compiled from the source of a small ``fx.Graph``.

Equal layers give equal source and share the class, so torch.compile compiles them once. Instances pickle as class name,
source and dict; the source is in ``linecache``, so tracebacks show it.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import re
from typing import Any

import torch
from torch import fx, nn

_classes: dict[tuple[str, str], type[ScopeModule]] = {}


class ScopeModule(nn.Module):
    """A generated scope. ``code`` is the source of its forward, ``graph`` the ``fx.Graph`` it was printed from."""

    code: str = ""
    imports: dict[str, str]
    graph: fx.Graph

    def __reduce_ex__(self, protocol: Any) -> Any:
        cls = _generated(type(self))
        return _revive, (cls.__name__, cls.code, cls.imports), self.__dict__

    def __deepcopy__(self, memo: dict[int, Any]) -> ScopeModule:
        from copy import deepcopy

        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for key, value in self.__dict__.items():
            # The traced graph is shared: it is read only, and as large as the model is deep.
            copied.__dict__[key] = value if key in _SHARED else deepcopy(value, memo)
        return copied


_SHARED = ("archc_graph",)


def _generated(cls: type) -> type[ScopeModule]:
    """The generated class behind an instance, whose class a wrapper (FSDP2) may have replaced by a subclass."""
    return next(base for base in cls.__mro__ if "code" in base.__dict__ and base is not ScopeModule)


def _revive(name: str, code: str, imports: dict[str, str]) -> ScopeModule:
    cls = scope_class(name, code, imports)
    return cls.__new__(cls)


def scope_class(name: str, code: str, imports: dict[str, str], graph: fx.Graph | None = None) -> type[ScopeModule]:
    """The class for a source text, made once. ``imports`` maps the global names in it to ``module:qualified.name``."""
    known = _classes.get((name, code))
    if known is None:
        file = f"<archc {name} {hashlib.sha256(code.encode()).hexdigest()[:12]}>"
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        space: dict[str, Any] = {key: _resolve(place) for key, place in imports.items()}
        exec(compile(code, file, "exec"), space)
        members = {"forward": space["forward"], "code": code, "imports": imports, "__module__": __name__}
        known = _classes[name, code] = type(name, (ScopeModule,), members)
    if graph is not None and "graph" not in known.__dict__:
        known.graph = graph
    return known


def _resolve(place: str) -> Any:
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    return found


def source_of(graph: fx.Graph) -> tuple[str, dict[str, str]]:
    """(source of ``forward``, the globals that it names) of an fx graph."""
    printed = graph.python_code("self")
    code = "\n".join(line.rstrip() for line in printed.src.strip("\n").splitlines()).rstrip() + "\n"
    used = {name: value for name, value in printed.globals.items() if re.search(rf"\b{name}\b", code)}
    return code, {name: _place(value) for name, value in used.items()}


def _place(value: Any) -> str:
    """``module:qualified.name`` of a global, so that a pickled class finds it again."""
    if isinstance(value, float):
        return f"math:{value}"
    if isinstance(value, type(torch)):
        return f"{value.__name__}:"
    if isinstance(value, torch.dtype):
        return str(value).replace(".", ":")
    return f"{value.__module__}:{value.__qualname__}"
