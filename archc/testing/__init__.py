"""For authors of kinds: the contract that every kind keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archc.testing.contract import check_spec
    from archc.testing.kinds import check_kind

__all__ = ["check_kind", "check_spec"]

_HOMES = {"check_kind": "archc.testing.kinds", "check_spec": "archc.testing.contract"}


def __getattr__(name: str) -> Any:
    """The two checks are imported when they are used: both need torch, and other files of this package do not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'archc.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
