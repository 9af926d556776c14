"""A spec with everything written out: what files, ``--set`` and siblings came to, the defaults, and where each value is from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel

from archc.errors import Problem
from archc.spec.emit import emit
from archc.spec.kind import Kind
from archc.spec.load import load_tree
from archc.spec.merge import kind_key
from archc.spec.nodes import Mark, Node, Path, is_list, is_mapping
from archc.spec.schema import Spec
from archc.spec.values import Scale

DEFAULT = "default"
Origin = Mark | str


class Resolved:
    """A valid spec beside its merged tree: ``tree`` is plain data, ``origins`` gives the mark of each leaf, or ``default``."""

    def __init__(self, spec: Spec, warnings: list[Problem], root: Node) -> None:
        self.spec = spec
        self.warnings = warnings
        self.origins: dict[Path, Origin] = {}
        self.tree: dict[str, Any] = dict(self._mapping(spec, root, ()))

    def to_yaml(self, *, origins: bool = False) -> str:
        """A text that loads to an equal spec; with ``origins``, each leaf's as a comment."""
        notes = {path: _note(origin) for path, origin in self.origins.items()} if origins else {}
        return emit(self.tree, notes)

    def _mapping(self, model: BaseModel, node: Node | None, path: Path) -> Iterator[tuple[str, Any]]:
        """The members of a mapping: its kind, then what is written or has a default, in the order of the fields."""
        if isinstance(model, Kind):
            key = kind_key(tuple(str(step) for step in path)) or "kind"
            stated = None if node is None else node.child(key) or (node if isinstance(node.value, str) else None)
            yield self._leaf((*path, key), model.kind_name, stated)
        for name, field in type(model).model_fields.items():
            value, key = getattr(model, name), field.alias or name
            written = None if node is None else node.child(key)
            if value is None or (written is None and name in model.model_fields_set):
                # Given by the kind around it, which will give it again.
                continue
            yield key, self._value(value, written, (*path, key))

    def _leaf(self, path: Path, value: Any, node: Node | None) -> tuple[str, Any]:
        self.origins[path] = DEFAULT if node is None else node.mark
        return str(path[-1]), value

    def _value(self, value: Any, node: Node | None, path: Path) -> Any:
        if isinstance(value, BaseModel):
            return dict(self._mapping(value, node, path))
        if is_mapping(value):
            return {
                name: self._value(item, None if node is None else node.child(name), (*path, name))
                for name, item in value.items()
            }
        plain = _plain(value)
        self._leaf(path, plain, node)
        return plain


def resolved(path: str | FilePath, overrides: Sequence[str] = ()) -> Resolved:
    """The spec in a file, or the shipped one of that name, with everything written out.

    Raises:
        SpecError: with all problems that can be judged in one run.
    """
    loaded = load_tree(path, overrides)
    return Resolved(loaded.spec, loaded.warnings, loaded.tree)


def _plain(value: Any) -> Any:
    if isinstance(value, Scale):
        return value.plain()
    if is_list(value):
        return [_plain(item) for item in value]
    if isinstance(value, BaseModel):
        return {name: _plain(item) for name, item in value if item is not None}
    return value


def _note(origin: Origin) -> str:
    if isinstance(origin, str):
        return origin
    return f"{origin.file}:{origin.line}:{origin.column}" if origin.line else origin.file
