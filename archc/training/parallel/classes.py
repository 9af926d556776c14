"""Classes of leaves that ranks share, made of the leaves' own: a leaf's class is replaced, so names and state dicts stay."""

from __future__ import annotations

from typing import Any

_made: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def subclass(plain: type[Any], mixed_in: type[Any]) -> type[Any]:
    """The class of a leaf with the methods of ``mixed_in`` before its own, made once."""
    key = (plain, mixed_in)
    if key not in _made:
        bases = (mixed_in,) if issubclass(mixed_in, plain) else (mixed_in, plain)
        members = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
        _made[key] = type(plain.__name__, bases, members)
    return _made[key]
