"""A spec cut into parts that are judged apart, so that a variant is put together of parts that other variants have had."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Self, cast

from pydantic import model_validator

from archc.families import Mixer
from archc.spec.merge import EXTENDS, NAMED_SECTIONS
from archc.spec.nodes import Node
from archc.spec.schema import PLACED_SECTIONS, Spec

Choice = tuple[int, ...]
"""Which value of each varied key."""

_PATTERNS = frozenset({"num_layers", "mixer", "cross", "ffn", "layers"})
"""Keys of a stack that say which layers there are; the others are the surroundings of a layer."""


class Unjudged(Spec):
    """A spec whose sections are valid each for itself; whether they fit each other is not asked."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        return self


class Key:
    """A varied key: its path, and its values as nodes of a spec's tree, made when they are asked for."""

    __slots__ = ("_make", "name", "number", "path")

    def __init__(self, name: str, number: int, make: Callable[[int], Node | None]) -> None:
        self.name, self.number, self._make = name, number, make
        self.path = tuple(name.split("."))

    def node(self, index: int) -> Node | None:
        """The value of that number; None for null."""
        return self._make(index)


@dataclass(slots=True)
class Part:
    """What one group of keys decides, for one choice of their values.

    ``fields`` are sections of the spec as they are before the whole is judged. Contents are numbered: ``ids`` those of mixers
    and ffns, ``stacks`` those of stacks, ``root`` that of all that layers stand in.
    """

    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    mixers: dict[str, Mixer] = field(default_factory=dict[str, Mixer])
    ffns: dict[str, Any] = field(default_factory=dict[str, Any])
    ids: dict[str, int] = field(default_factory=dict[str, int])
    stacks: dict[str, int] = field(default_factory=dict[str, int])
    readers: dict[str, str] = field(default_factory=dict[str, str])
    root: int = 0


class Group(NamedTuple):
    """Keys that decide one part: a top-level section, or mixers or ffns of which one extends the other.

    ``names`` are those mixers or ffns, empty for all of the section.
    """

    section: str
    names: frozenset[str]
    pick: Callable[[Choice], Hashable]


def groups_of(tree: Node, keys: Sequence[Key]) -> list[Group]:
    """The keys by what they decide; what no key decides is in the last group, ``""``."""
    places: dict[tuple[str, frozenset[str]], list[int]] = {}
    coarse = {key.path[0] for key in keys if key.path[0] in NAMED_SECTIONS and _may_extend(key, keys)}
    for at, key in enumerate(keys):
        section = key.path[0]
        is_entry = section in NAMED_SECTIONS and section not in coarse
        names = _relatives(tree.child(section), key.path[1]) if is_entry else frozenset[str]()
        places.setdefault((section, names), []).append(at)
    found = [Group(section, names, itemgetter(*numbers)) for (section, names), numbers in places.items()]
    return [*found, Group("", frozenset(), _nothing)]


def _nothing(choice: Choice) -> Hashable:
    return 0


def _may_extend(key: Key, keys: Sequence[Key]) -> bool:
    """Whether values of a key of mixers or ffns can say which extends which."""
    if len(key.path) == 1 or EXTENDS in key.path[2:3]:
        return True
    return len(key.path) == 2 and any(
        node is not None and node.child(EXTENDS) is not None for node in map(key.node, range(key.number))
    )


def _relatives(section: Node | None, name: str) -> frozenset[str]:
    """The entry and all that extend it or that it extends, however far."""
    entries: Mapping[str, Node] = {} if section is None else section.mapping
    pairs = [(own, base.value) for own, entry in entries.items() if (base := entry.child(EXTENDS)) is not None]
    found = {name}
    while more := {each for pair in pairs if found & set(pair) for each in pair if isinstance(each, str)} - found:
        found |= more
    return frozenset(found)


class Parts:
    """The parts that were judged so far, by group and choice."""

    def __init__(self, tree: Node, keys: Sequence[Key]) -> None:
        self.groups = groups_of(tree, keys)
        self._known: list[dict[Hashable, Part]] = [{} for _ in self.groups]
        self._contents: dict[str, int] = {}
        self._varied = {(group.section, name) for group in self.groups for name in group.names}
        self._sections = {group.section for group in self.groups if group.section and not group.names}

    def get(self, choice: Choice) -> list[Part] | None:
        """The parts of a variant; None where one of them has not been seen."""
        found: list[Part] = []
        for group, known in zip(self.groups, self._known, strict=True):
            part = known.get(group.pick(choice))
            if part is None:
                return None
            found.append(part)
        return found

    def learn(self, choice: Choice, plain: Mapping[str, Any]) -> list[Part]:
        """The parts of a variant given as plain data, which further ones may share.

        Raises:
            ValidationError: a section is invalid.
        """
        spec = Unjudged.model_validate(plain)
        found: list[Part] = []
        for group, known in zip(self.groups, self._known, strict=True):
            combination = group.pick(choice)
            if combination not in known:
                known[combination] = self._part(group, spec, plain)
            found.append(known[combination])
        return found

    def _part(self, group: Group, spec: Spec, plain: Mapping[str, Any]) -> Part:
        part = Part()
        if group.section and not group.names:
            sections = [group.section]
        else:
            sections = [] if group.section else [name for name in Spec.model_fields if name not in self._sections]
        roots: dict[str, Any] = {}
        for section in NAMED_SECTIONS:
            entries: Mapping[str, Any] = getattr(spec, section)
            if section in sections:
                mine = {name for name in entries if (section, name) not in self._varied}
            else:
                mine = group.names if section == group.section else frozenset[str]()
            for name, kind in entries.items():
                if name in mine:
                    (part.mixers if section == "mixers" else part.ffns)[name] = kind
                    part.ids[name] = self._number([section, plain[section][name]])
        for section in sections:
            if section not in NAMED_SECTIONS:
                part.fields[section] = getattr(spec, section)
                roots[section] = _surroundings(section, plain.get(section))
                if section in PLACED_SECTIONS:
                    part.stacks[section] = self._number([section, plain.get(section)])
        for name, mixer in part.mixers.items():
            if (owner := mixer.shares_of()) is not None:
                part.readers[name] = owner
        part.root = self._number(roots)
        return part

    def _number(self, content: Any) -> int:
        """Equal contents have equal numbers, from 1."""
        text = json.dumps(content, sort_keys=True)
        return self._contents.setdefault(text, len(self._contents) + 1)


def _surroundings(section: str, plain: Any) -> Any:
    if section in PLACED_SECTIONS and isinstance(plain, Mapping):
        return {key: value for key, value in cast("Mapping[str, Any]", plain).items() if key not in _PATTERNS}
    return None if section in ("name", "description") else plain
