"""Functions that are left out where their first argument is None: what is made of an encoder's tokens, in a call without any.

Each has a name from which this module finds it again, so that a generated class can name it and be pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch.fx.node import _get_qualified_name

_BETWEEN = "__of__"
_made: dict[str, Callable[..., Any]] = {}


def left_out(target: Callable[..., Any]) -> Callable[..., Any]:
    """``target``, or None where its first argument is None."""
    return _named(_get_qualified_name(target).replace(".", _BETWEEN), target)


def __getattr__(name: str) -> Callable[..., Any]:
    """The function that ``left_out`` made under this name, here or in another process."""
    if name in _made:
        return _made[name]
    if _BETWEEN not in name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    *modules, last = name.split(_BETWEEN)
    return _named(name, getattr(import_module(".".join(modules)), last))


def _named(name: str, target: Callable[..., Any]) -> Callable[..., Any]:
    if name not in _made:

        def call(first: Any, *args: Any, **keywords: Any) -> Any:
            return None if first is None else target(first, *args, **keywords)

        call.__module__, call.__name__, call.__qualname__ = __name__, name, name
        _made[name] = call
    return _made[name]
