"""The tree a YAML file is read into: plain values that remember where they were written. Nodes are shared and never changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard

Scalar: TypeAlias = str | int | float | bool | None
Path: TypeAlias = tuple[str | int, ...]


class Mark(NamedTuple):
    """Where something was written. Line and column count from 1; both are 0 for a value given on the command line."""

    file: str
    line: int = 0
    column: int = 0


class Node:
    """A value with its mark; a mapping also keeps the mark of each key, so that a node can stand under several keys.

    ``text`` is a scalar as it was written (``1e-5``) and ``quoted`` says whether it stood in quotes. ``size`` counts the
    nodes of the tree below, a shared one at each place, and ``height`` its levels: what would be built from it is known before.
    """

    __slots__ = ("height", "keys", "mark", "quoted", "size", "text", "value")

    def __init__(
        self,
        value: Scalar | Mapping[str, Node] | Sequence[Node],
        mark: Mark,
        *,
        keys: Mapping[str, Mark] | None = None,
        text: str = "",
        quoted: bool = False,
    ) -> None:
        self.value = value
        self.mark = mark
        self.keys: Mapping[str, Mark] = keys or {}
        self.text = text
        self.quoted = quoted
        below = (
            value.values()
            if isinstance(value, Mapping)
            else ()
            if isinstance(value, str) or not isinstance(value, Sequence)
            else value
        )
        self.size = 1 + sum(node.size for node in below)
        self.height = 1 + max((node.height for node in below), default=0)

    @property
    def mapping(self) -> Mapping[str, Node]:
        """The members of a mapping; nothing for any other node."""
        return self.value if isinstance(self.value, Mapping) else {}

    def child(self, step: str | int) -> Node | None:
        """The node under a key or an index, or None."""
        if isinstance(step, str):
            return self.mapping.get(step)
        items = self.value
        if isinstance(items, Sequence) and not isinstance(items, str) and 0 <= step < len(items):
            return items[step]
        return None

    def at(self, path: Sequence[str | int]) -> Node | None:
        """The node at the end of a path, or None."""
        node: Node | None = self
        for step in path:
            node = None if node is None else node.child(step)
        return node

    def key_mark(self, key: str) -> Mark:
        """Where a key of this mapping was written."""
        return self.keys.get(key, self.mark)

    def plain(self) -> Any:
        """The value without its marks, as dicts, lists and scalars of its own."""
        if isinstance(self.value, Mapping):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, Sequence) and not isinstance(self.value, str):
            return [node.plain() for node in self.value]
        return self.value


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether plain data is a mapping; a reader gives no key but text."""
    # Asked many times of many variants, nearly always of a dict; the general question takes ten times as long.
    return type(value) is dict or isinstance(value, Mapping)


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether plain data is a list or a tuple."""
    return isinstance(value, list | tuple)


def dotted(path: Sequence[str | int]) -> str:
    """A path as the messages and ``--set`` write it."""
    return ".".join(str(step) for step in path)
