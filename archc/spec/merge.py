"""How values combine: a child file over its parent, ``--set`` over both, then siblings. Marks travel with the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from archc.errors import Problem, SpecError
from archc.spec.events import MAX_NODES
from archc.spec.faults import MAX_PROBLEMS
from archc.spec.marks import problem_at
from archc.spec.near import nearest
from archc.spec.nodes import Mark, Node
from archc.spec.scalars import shortened

EXTENDS = "extends"
NAMED_SECTIONS = ("mixers", "ffns")
"""Maps of names to kinds: their keys are names, so that a mixer called ``kind`` states nothing."""


def kind_key(path: tuple[str, ...]) -> str:
    """The key that states the kind of the mapping at ``path``; empty for mappings that have no kind."""
    if not path or (len(path) == 1 and path[0] in NAMED_SECTIONS):
        return ""
    # A stack's patterns; a mixer may bear any name.
    if len(path) == 2 and path[0] not in NAMED_SECTIONS and path[1] in ("mixer", "ffn", "layers"):
        return ""
    return "policy" if path[-1] == "cache" else "kind"


def amend(base: Node, child: Node, path: tuple[str, ...] = ()) -> Node:
    """The child's leaves over the base's (rule C). A mapping that states its kind replaces; nulls stay, to remove later."""
    if not isinstance(child.value, Mapping):
        return child
    kind = kind_key(path)
    if kind and kind in child.mapping:
        return child
    if isinstance(base.value, str) and kind:
        base = Node({kind: base}, base.mark, keys={kind: base.mark})
    if not isinstance(base.value, Mapping):
        return child
    members, keys = dict(base.mapping), dict(base.keys)
    for key, node in child.mapping.items():
        if key in members:
            members[key] = amend(members[key], node, (*path, key))
        else:
            members[key] = node
        keys[key] = child.key_mark(key)
    return Node(members, child.mark, keys=keys)


class Siblings(NamedTuple):
    """A tree whose siblings are merged; the paths that could not be, which need no further judging."""

    root: Node
    extended: frozenset[str]
    broken: frozenset[tuple[str, str]]


def merge_siblings(root: Node, problems: list[Problem]) -> Siblings:
    """Every mixer and ffn with the keys of the one it extends (rule B); removed entries are gone."""
    members = dict(root.mapping)
    extended: set[str] = set()
    broken: set[tuple[str, str]] = set()
    for section in NAMED_SECTIONS:
        node = members.get(section)
        if node is None or not isinstance(node.value, Mapping):
            continue
        family = _Family(section, node, root, problems)
        merged = {name: family.merged(name) for name, entry in node.mapping.items() if entry.value is not None}
        members[section] = Node(merged, node.mark, keys=node.keys)
        extended |= family.extended
        broken |= {(section, name) for name in family.broken}
    return Siblings(Node(members, root.mark, keys=root.keys), frozenset(extended), frozenset(broken))


class _Family:
    """One section's entries while they are merged, bases first and without recursion: a chain may be long."""

    def __init__(self, section: str, node: Node, root: Node, problems: list[Problem]) -> None:
        self.section = section
        self.entries = node.mapping
        self.other = next(name for name in NAMED_SECTIONS if name != section)
        self.root = root
        self.problems = problems
        self.extended: set[str] = set()
        self.broken: set[str] = set()
        self.size = 0
        self._done: dict[str, Node] = {}

    def merged(self, name: str) -> Node:
        chain: dict[str, None] = {}
        while name not in self._done:
            chain[name] = None
            base = self._base(name)
            if base is None:
                self._done[name] = without_extends(self.entries[name])
            elif base in chain:
                self._report_cycle(list(chain), base)
                for member in chain:
                    self.broken.add(member)
                    self._done[member] = without_extends(self.entries[member])
            else:
                name = base
        for member in reversed(chain):
            base = self._base(member, report=False)
            if base is not None and member not in self.broken:
                self._done[member] = self._over(self._done[base], self.entries[member])
                if base in self.broken:
                    self.broken.add(member)
        return self._done[next(iter(chain), name)]

    def _base(self, name: str, *, report: bool = True) -> str | None:
        """The entry that ``name`` extends, if it is there to be extended."""
        stated = self.entries[name].child(EXTENDS)
        if stated is None or stated.value is None:
            return None
        base = stated.value
        if isinstance(base, str) and (entry := self.entries.get(base)) is not None and entry.value is not None:
            self.extended.add(base)
            return base
        if report:
            self.broken.add(name)
            if len(self.problems) <= MAX_PROBLEMS:
                self._problem(name, stated, *self._no_base(base))
        return None

    def _no_base(self, base: object) -> tuple[str, str]:
        one = "a mixer" if self.section == "mixers" else "an ffn"
        if not isinstance(base, str):
            return f"should be the name of {one}", ""
        if base in self.entries:
            mark = self.entries[base].mark
            return f"{base} is removed ({mark.file}:{mark.line})", ""
        if (other := self.root.child(self.other)) is not None and base in other.mapping:
            return f"{base} is in {self.other}; {one} extends {one}", ""
        near = nearest(base, self.entries)
        hint = f"Did you mean {near}?" if near else f"Known are {shortened(', '.join(self.entries))}"
        return f"no {one.split()[1]} is called {shortened(base)}", hint

    def _report_cycle(self, chain: list[str], base: str) -> None:
        start = chain.index(base)
        cycle = shortened(" -> ".join([*chain[start:], base]), limit=200)
        stated = self.entries[chain[-1]].mapping[EXTENDS]
        self._problem(chain[-1], stated, f"extends itself ({cycle})", "")

    def _problem(self, name: str, node: Node, message: str, suggestion: str) -> None:
        path = (self.section, name, EXTENDS)
        self.problems.append(problem_at(node.mark, path, message, suggestion, code="extends"))

    def _over(self, base: Node, mine: Node) -> Node:
        """All keys of the base, then mine, whole; a null of mine removes."""
        if not isinstance(base.value, Mapping):
            base = Node({"kind": base}, base.mark, keys={"kind": base.mark})
        self.size += base.size
        if self.size > MAX_NODES:
            message = f"too long: more than {MAX_NODES:,} values once siblings are written out"
            problem = problem_at(mine.mark, (self.section,), message, code="yaml")
            raise SpecError([*self.problems, problem])
        members, keys = dict(base.mapping), dict(base.keys)
        for key, node in mine.mapping.items():
            if key == EXTENDS:
                continue
            members.pop(key, None)
            members[key] = node
            keys[key] = mine.key_mark(key)
        return Node(members, mine.mark, keys=keys)


def without_extends(node: Node) -> Node:
    """The mapping less its ``extends``."""
    if EXTENDS not in node.mapping:
        return node
    members = {key: value for key, value in node.mapping.items() if key != EXTENDS}
    return Node(members, node.mark, keys=node.keys)


def set_value(root: Node, path: Sequence[str], value: Node | None, file: str) -> Node:
    """The tree with one value written over it, as a child file with that leaf alone would (rule D); None writes null."""
    mark = Mark(file)
    leaf = Node(None, mark) if value is None else value
    for key in reversed(path):
        leaf = Node({key: leaf}, mark, keys={key: mark})
    return amend(root, leaf)
