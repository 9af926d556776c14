"""Which tensors there fill which weights here: rules by template, matched against a graph. Nothing missing, nothing twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate
from math import prod

from archc.checkpoint.layouts import shape_there
from archc.checkpoint.rules import SAME, Dropped, Layout, LeftOut, Naming, Rule, canonical, renamed

Shape = tuple[int, ...]
_LAYER, _EXPERT = "{i}", "{e}"


@dataclass(frozen=True, slots=True)
class Span:
    """``count`` elements of a tensor from ``start`` on, which are those of a weight from index ``at`` of its first dimension."""

    name: str
    at: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor there and the weights here that it holds; ``expert`` is which slice of their first dimension, or None."""

    theirs: str
    ours: tuple[str, ...]
    layout: Layout
    shapes: tuple[Shape, ...]
    """Of the weights, without the dimension of experts where ``expert`` is set."""
    expert: int | None = None
    rows: tuple[tuple[int, int], ...] | None = None
    """Which rows of each weight the tensor holds (first, last + 1); None for all."""

    @property
    def shape_there(self) -> Shape:
        """Shape of the tensor there."""
        return shape_there(self.layout, self.shapes)

    @property
    def spans(self) -> tuple[Span, ...] | None:
        """What of each weight lies where in the tensor, where only bytes have to move; else None."""
        if self.layout != SAME:
            return None
        starts = [self.expert or 0] * len(self.ours) if self.rows is None else [first for first, _ in self.rows]
        counts = [prod(shape) for shape in self.shapes]
        ends = accumulate(counts)
        return tuple(
            Span(name, at, end - count, count)
            for name, at, end, count in zip(self.ours, starts, ends, counts, strict=True)
        )

    @property
    def by_slices(self) -> tuple[Layout, tuple[Shape, ...]] | None:
        """Layout and shapes of one slice, where each slice of the tensor's first dimension holds one of each weight."""
        if self.layout.axis == 0 or self.layout.view is not None or self.expert is not None or self.rows is not None:
            return None
        return replace(self.layout, axis=self.layout.axis - 1), tuple(shape[1:] for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class Plan:
    """All parts, in the order of the rules, and what is wrong with them."""

    parts: tuple[Part, ...]
    problems: tuple[str, ...]


def plan(rules: Sequence[Rule], shapes: Mapping[str, Shape]) -> Plan:
    """Parts that fill every weight of a graph once; rules for weights that it has not are left out."""
    parts: list[Part] = []
    problems: list[str] = []
    filled: dict[str, str] = {}
    pieces: dict[str, list[tuple[int, int]]] = {}
    for rule in rules:
        for layer in _layers(rule, shapes):
            ours = tuple(name.replace(_LAYER, layer) for name in rule.ours)
            missing = [name for name in ours if name not in shapes]
            if len(missing) == len(ours):
                continue
            if missing:
                problems.append(f"{rule.theirs}: the model has {ours[0]}, and not {', '.join(missing)}")
                continue
            again = [name for name in ours if name in filled and rule.rows is None]
            for name, rows in zip(ours, rule.rows or (), strict=False):
                pieces.setdefault(name, []).append(rows)
            problems += [f"{name} is filled by {filled[name]} and by {rule.theirs}" for name in again]
            filled |= dict.fromkeys(ours, rule.theirs)
            try:
                found = list(_parts(rule, layer, ours, [tuple(shapes[name]) for name in ours]))
                for part in found:
                    _ = part.shape_there
            except ValueError as error:
                problems.append(f"{rule.theirs}: {error}")
                continue
            parts += found
    problems += [f"{name} {list(shape)} is filled by nothing" for name, shape in shapes.items() if name not in filled]
    for name, found_rows in pieces.items():
        ends = [0, *(end for rows in sorted(found_rows) for end in rows), shapes[name][0]]
        if ends[::2] != ends[1::2]:
            problems.append(f"{name} {list(shapes[name])} is filled by rows {sorted(found_rows)}")
    return Plan(tuple(parts), tuple(problems))


def _layers(rule: Rule, shapes: Mapping[str, Shape]) -> list[str]:
    """Layers that have the first weight of a rule, as texts; one empty text for a rule without layers."""
    if _LAYER not in rule.ours[0]:
        return [""]
    pattern = re.compile(re.escape(rule.ours[0]).replace(re.escape(_LAYER), r"(\d+)"))
    return [match[1] for match in map(pattern.fullmatch, shapes) if match]


def _parts(rule: Rule, layer: str, ours: tuple[str, ...], shapes: Sequence[Shape]) -> Iterator[Part]:
    theirs = rule.theirs.replace(_LAYER, layer)
    if rule.rows is not None:
        cut = tuple((stop - start, *shape[1:]) for (start, stop), shape in zip(rule.rows, shapes, strict=True))
        yield Part(theirs, ours, rule.layout, cut, rows=rule.rows)
        return
    if _EXPERT not in theirs:
        yield Part(theirs, ours, rule.layout, tuple(shapes))
        return
    inner = tuple(shape[1:] for shape in shapes)
    for expert in range(shapes[0][0]):
        yield Part(theirs.replace(_EXPERT, str(expert)), ours, rule.layout, inner, expert)


@dataclass(frozen=True, slots=True)
class Match:
    """A plan beside a file: the file's name of every tensor of the plan, how it writes names, and what is wrong."""

    names: dict[str, str]
    naming: Naming
    unused: tuple[str, ...]
    """Tensors of the file that were left out on purpose."""
    problems: tuple[str, ...]
    hints: tuple[str, ...]


def naming_of(found: Plan, stored: Mapping[str, Shape], namings: Sequence[Naming]) -> Naming:
    """The way in which a file writes the names: the one that finds most of them."""
    return max(namings, key=lambda way: sum(renamed(part.theirs, way) in stored for part in found.parts))


def match(
    found: Plan,
    stored: Mapping[str, Shape],
    *,
    namings: Sequence[Naming] = ((),),
    dropped: Sequence[Dropped] = (),
    left_out: Sequence[LeftOut] = (),
    allow_unused: Sequence[str] = (),
    copies: Sequence[str] = (),
) -> Match:
    """The tensors of a file that a plan needs. Every other one is dropped with a reason, a copy, or allowed to be left over.

    ``namings`` are the ways in which files write the names; the one that finds most is taken. ``allow_unused`` are shell
    patterns.
    """
    naming = naming_of(found, stored, namings)
    names = {part.theirs: renamed(part.theirs, naming) for part in found.parts}
    problems = list(found.problems)
    for part in found.parts:
        name = names[part.theirs]
        if name not in stored:
            problems.append(f"{name} {list(part.shape_there)} is missing")
        elif tuple(stored[name]) != part.shape_there:
            problems.append(f"{name} is {list(stored[name])}, not {list(part.shape_there)}")
    used = {*names.values(), *copies}
    unneeded = [re.compile(entry.pattern) for entry in dropped]
    unused: list[str] = []
    hints: Counter[tuple[str, str]] = Counter()
    for name, shape in stored.items():
        if name in used:
            continue
        forms = {name, canonical(name, naming)}
        if any(pattern.fullmatch(form) for pattern in unneeded for form in forms) or any(
            fnmatchcase(form, pattern) for pattern in allow_unused for form in forms
        ):
            unused.append(name)
            continue
        problems.append(f"{name} {list(shape)} belongs to no weight of the model")
        for entry in left_out:
            if any(fnmatchcase(form, entry.pattern) for form in forms):
                hints[
                    entry.pattern if fnmatchcase(name, entry.pattern) else renamed(entry.pattern, naming), entry.what
                ] += 1
                break
    return Match(
        names,
        naming,
        tuple(unused),
        tuple(problems),
        tuple(
            f"{count} of them are {what}, which archc does not build; --allow-unused '{pattern}' leaves them out"
            for (pattern, what), count in hints.items()
        ),
    )
