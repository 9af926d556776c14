"""YAML events to nodes, without recursion: every limit is checked while events come in, before anything is built from them."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import yaml

from archc.errors import Problem
from archc.spec.marks import problem_at
from archc.spec.nodes import Mark, Node, Path
from archc.spec.scalars import ScalarError, resolve, shortened

try:
    # pyyaml built without libyaml has no such module.
    _Parser: Any = import_module("yaml.cyaml").CParser
except ImportError:
    _Parser = yaml.Loader

MAX_DEPTH = 32
MAX_EVENTS = 20_000
MAX_NODES = 20_000
"""Nodes after aliases are written out."""

_MERGE_KEY = "<<"

UNREADABLE = math.nan
"""Stands for a scalar that was reported: no key takes it, and nothing else is said of it."""


class TooMuchError(ValueError):
    """A file beyond a limit, or one that is no single mapping: reading stops here."""

    def __init__(self, message: str, mark: Mark, path: Path = ()) -> None:
        super().__init__(message)
        self.mark = mark
        self.path = path


class _Open:
    """A mapping or list that is being filled."""

    __slots__ = ("anchor", "is_mapping", "is_tagged", "items", "key", "key_mark", "keys", "members", "start", "void")

    def __init__(self, start: Mark, *, is_mapping: bool, anchor: str | None, is_tagged: bool) -> None:
        self.start = start
        self.is_mapping = is_mapping
        self.anchor = anchor
        self.is_tagged = is_tagged
        self.void = False
        self.members: dict[str, Node] = {}
        self.keys: dict[str, Mark] = {}
        self.items: list[Node] = []
        self.key: str | None = None
        self.key_mark = start


class Composer:
    """Builds the tree of one document. Mistakes that don't hinder reading on are collected in ``problems``."""

    def __init__(self, file: str, *, lines: bool = True) -> None:
        self.file = file
        self.lines = lines
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._nodes = 0

    def read(self, text: str) -> Node | None:
        """The root node, or None for an empty document.

        Raises:
            TooMuchError: beyond a limit, or more than one document.
            yaml.YAMLError: not YAML.
        """
        parser: Any = _Parser(text)
        handlers: dict[Any, Any] = {
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.MappingStartEvent: self._start,
            yaml.SequenceStartEvent: self._start,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.DocumentStartEvent: self._document,
        }
        events = 0
        while (event := parser.get_event()) is not None:
            events += 1
            if events > MAX_EVENTS:
                raise TooMuchError(f"too long: more than {MAX_EVENTS:,} YAML events", self._mark(event))
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
            elif isinstance(event, yaml.StreamEndEvent):
                break
        return self.root

    def _mark(self, event: Any) -> Mark:
        if not self.lines:
            return Mark(self.file)
        mark = event.start_mark
        return Mark(self.file, mark.line + 1, mark.column + 1)

    def _path(self) -> Path:
        steps = [parent.key if parent.is_mapping else len(parent.items) for parent in self._open]
        return tuple(step for step in steps if step is not None)

    def _problem(self, mark: Mark, message: str, suggestion: str = "", *, code: str = "yaml") -> None:
        self.problems.append(problem_at(mark, self._path(), message, suggestion, code=code))

    def _document(self, event: Any) -> None:
        if self.root is not None:
            raise TooMuchError("a spec is one YAML document; a second one starts here", self._mark(event))

    def _scalar(self, event: Any) -> None:
        mark = self._mark(event)
        quoted = not event.implicit[0] and event.style is not None
        is_tagged = self._refuse_tag(event, mark)
        if self._takes_key():
            self._set_key(event.value, mark, quoted=quoted)
            return
        text: str = event.value
        try:
            value = UNREADABLE if is_tagged else text if quoted else resolve(text)
        except ScalarError as error:
            self._problem(mark, str(error))
            value = UNREADABLE
        self._add(Node(value, mark, text=text, quoted=quoted), new=1, anchor=event.anchor)

    def _alias(self, event: Any) -> None:
        mark = self._mark(event)
        name: str = event.anchor
        if self._takes_key():
            raise TooMuchError("a key should be plain text, not an alias", mark)
        if any(parent.anchor == name for parent in self._open):
            raise TooMuchError(f"the alias *{shortened(name)} stands inside its own anchor", mark, self._path())
        known = self._anchors.get(name)
        if known is None:
            raise TooMuchError(f"unknown alias *{shortened(name)}", mark, self._path())
        self._add(known, new=known.size, anchor=None)

    def _start(self, event: Any) -> None:
        mark = self._mark(event)
        if self._takes_key():
            raise TooMuchError("a key should be plain text", mark, self._path())
        if len(self._open) >= MAX_DEPTH:
            raise TooMuchError(f"nested more than {MAX_DEPTH} deep", mark)
        is_tagged = self._refuse_tag(event, mark)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._open.append(_Open(mark, is_mapping=is_mapping, anchor=event.anchor, is_tagged=is_tagged))

    def _end(self, _event: Any) -> None:
        done = self._open.pop()
        value = done.members if done.is_mapping else done.items
        if done.is_tagged and self._open:
            value = UNREADABLE
        node = Node(value, done.start, keys=done.keys)
        self._add(node, new=1, anchor=done.anchor)

    def _add(self, node: Node, *, new: int, anchor: str | None) -> None:
        """Put a finished node where it belongs; ``new`` says how many nodes came with it."""
        self._nodes += new
        if self._nodes > MAX_NODES:
            raise TooMuchError(f"too long: more than {MAX_NODES:,} values once aliases are written out", node.mark)
        if len(self._open) + node.height > MAX_DEPTH + 1:
            raise TooMuchError(f"nested more than {MAX_DEPTH} deep once aliases are written out", node.mark)
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if not parent.is_mapping:
            parent.items.append(node)
            return
        assert parent.key is not None, "a value follows its key"
        if not parent.void:
            parent.members[parent.key] = node
            parent.keys[parent.key] = parent.key_mark
        elif parent.key == _MERGE_KEY:
            # Refused, but what it would bring is not missing.
            parent.members = {**node.mapping, **parent.members}
        parent.key = None

    def _takes_key(self) -> bool:
        return bool(self._open) and self._open[-1].is_mapping and self._open[-1].key is None

    def _set_key(self, key: str, mark: Mark, *, quoted: bool) -> None:
        """Open a key; a key that may not stand here is reported, and its value is read and forgotten."""
        parent = self._open[-1]
        parent.key, parent.key_mark, parent.void = key, mark, False
        if key == _MERGE_KEY and not quoted:
            self._problem(
                mark, "merge keys (<<) are not part of the language", "extends does the same for files and siblings"
            )
            parent.void = True
        elif key in parent.keys:
            first = parent.keys[key]
            self._problem(mark, f"written twice (first in line {first.line})", code="duplicate_key")
            parent.void = True

    def _refuse_tag(self, event: Any, mark: Mark) -> bool:
        """Whether there was a tag to refuse."""
        if event.tag is None:
            return False
        tag = shortened(event.tag.replace("tag:yaml.org,2002:", "!!"))
        self._problem(mark, f"tags are not part of the language (found {tag})", code="tag")
        return True
