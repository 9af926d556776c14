"""Layer patterns: ``(kda*3 mla)* kda*2 mla`` and the names it stands for. Lengths are added up before anything is expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from archc.spec.nodes import is_list
from archc.spec.scalars import shortened

MAX_LAYERS = 10_000
MAX_NESTING = 8
NONE = "none"
"""The name that stands for no sub-layer."""

NAME = re.compile(r"[a-z][a-z0-9_]*")
_UNIT = re.compile(r"[a-z][a-z0-9_]*(?:\+[a-z][a-z0-9_]*)?")
_COUNT = re.compile(r"[0-9]+")
_SPACE = re.compile(r"[ \t\r\n]+")


class PatternError(ValueError):
    """A text that is no pattern, or a pattern that does not come to the number of layers."""

    def __init__(self, message: str, suggestion: str = "", *, word: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.word = word


@dataclass(frozen=True, slots=True)
class Item:
    """``unit*count``; an open item has no count."""

    unit: str | Items
    count: int | None = 1

    @property
    def unit_length(self) -> int:
        """Layers of one copy."""
        return 1 if isinstance(self.unit, str) else closed_length(self.unit)

    def names(self) -> Iterator[str]:
        """Every name, in order of writing."""
        if isinstance(self.unit, str):
            yield self.unit
        else:
            for item in self.unit:
                yield from item.names()

    def __str__(self) -> str:
        unit = self.unit if isinstance(self.unit, str) else f"({written(self.unit)})"
        return f"{unit}*" if self.count is None else unit if self.count == 1 else f"{unit}*{self.count}"


Items: TypeAlias = tuple[Item, ...]


def written(items: Items) -> str:
    """Items as a spec writes them."""
    return " ".join(map(str, items))


def closed_length(items: Items) -> int:
    """Layers of all items that are not open."""
    return sum(item.unit_length * item.count for item in items if item.count is not None)


def joined(value: Any) -> str | None:
    """A pattern's text: a text, or the entries of a list joined by spaces; None for anything else."""
    if isinstance(value, str):
        return value
    if is_list(value) and value and all(isinstance(entry, str) for entry in value):
        return " ".join(value)
    return None


@lru_cache(maxsize=256)
def parse(text: str) -> Items:
    """The items of a pattern; one that was read is remembered, since a spec's patterns are asked for by many rules.

    Raises:
        PatternError: the text is no pattern; ``word`` is the part that isn't.
    """
    items = _Parser(text.strip(" \t\r\n")).whole()
    if sum(item.count is None for item in items) > 1:
        opened = [str(item) for item in items if item.count is None]
        raise PatternError(
            f"at most one item can be open (found {shortened(', '.join(opened))})",
            "Give all but one a count, as in moe*3",
        )
    return items


def copies(items: Items, num_layers: int) -> int | None:
    """How often the open item (or a lone bare name) is repeated to fill the layers; None when it doesn't come out."""
    open_item = next((item for item in items if item.count is None), None)
    if open_item is None:
        return num_layers if _is_bare(items) else 1 if closed_length(items) == num_layers else None
    times, rest = divmod(num_layers - closed_length(items), open_item.unit_length)
    return times if times >= 1 and rest == 0 else None


def expand(items: Items, num_layers: int) -> tuple[str, ...]:
    """The names in layer order, for a pattern that comes to ``num_layers``."""
    times = copies(items, num_layers)
    assert times is not None, f"{written(items)} does not come to {num_layers} layers"
    if _is_bare(items):
        return (str(items[0].unit),) * times
    return tuple(_expanded(items, times))


def one_copy(item: Item) -> list[str]:
    """The names of one copy of an item's unit."""
    return [item.unit] if isinstance(item.unit, str) else _expanded(item.unit, 1)


def _is_bare(items: Items) -> bool:
    return len(items) == 1 and isinstance(items[0].unit, str) and items[0].count == 1


def _expanded(items: Items, times: int) -> list[str]:
    names: list[str] = []
    for item in items:
        names += one_copy(item) * (times if item.count is None else item.count)
    return names


class _Parser:
    """Recursive descent; parentheses nest at most 8 deep, so the recursion is bounded."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.units = 0

    def whole(self) -> Items:
        if not self.text:
            raise PatternError("a pattern names at least one layer (found nothing)")
        items = self._pattern(0)
        if self.at < len(self.text):
            raise self._error()
        return items

    def _pattern(self, depth: int) -> Items:
        items = [self._item(depth)]
        while space := _SPACE.match(self.text, self.at):
            self.at = space.end()
            items.append(self._item(depth))
        return tuple(items)

    def _item(self, depth: int) -> Item:
        unit = self._unit(depth)
        if not self._takes("*"):
            return Item(unit)
        found = _COUNT.match(self.text, self.at)
        if found is None:
            if depth:
                raise PatternError(
                    f"an open item can't stand inside parentheses (found {self._word()})",
                    "Give it a count, as in moe*3",
                )
            return Item(unit, None)
        self.at = found.end()
        digits = found[0]
        if digits[0] == "0":
            raise PatternError(f"a count is 1, 2, 3, ... (found {shortened(digits)})")
        # Longer than any stack; kept short of numbers that Python refuses to read.
        return Item(unit, int(digits[:18]))

    def _unit(self, depth: int) -> str | Items:
        if self._takes("("):
            if depth == MAX_NESTING:
                raise PatternError(f"parentheses nest at most {MAX_NESTING} deep")
            items = self._pattern(depth + 1)
            if not self._takes(")"):
                raise self._error()
            return items
        self.units += 1
        if self.units > MAX_LAYERS:
            raise PatternError(f"more than {MAX_LAYERS:,} names, and a stack has no more layers")
        found = _UNIT.match(self.text, self.at)
        if found is None:
            raise self._error()
        self.at = found.end()
        return found[0]

    def _takes(self, character: str) -> bool:
        if self.text.startswith(character, self.at):
            self.at += 1
            return True
        return False

    def _word(self) -> str:
        start = max(self.text.rfind(space, 0, self.at) for space in " \t\r\n") + 1
        end = _SPACE.search(self.text, self.at)
        return shortened(self.text[start : end.start() if end else None].strip("()") or self.text[start:])

    def _error(self) -> PatternError:
        here = self.text[self.at : self.at + 1]
        if not here:
            return PatternError("a parenthesis is not closed", word="(")
        if here == ")":
            return PatternError("a parenthesis is closed that was not opened, or holds nothing", word=")")
        if here.isspace() or here == "*":
            return PatternError(
                f"no space inside an item (found {shortened(self.text)})", "Write kda*3, (kda*3 mla)*", word=here
            )
        word = self._word()
        return PatternError(f"can't be read as a pattern (found {word})", word=word)


_MOST_FOLDED, _WIDEST_FOLD = 128, 6


def pattern_of(names: Sequence[str]) -> str:
    """The shortest pattern found for a list of names: it expands back to the list."""
    if len(set(names)) == 1:
        return names[0]
    closed = _folded if len(names) <= _MOST_FOLDED else runs
    best = written(closed(names))
    # Beyond this a search would take long, and nobody reads the result.
    if len(names) > 512:
        return best
    for head in range(min(len(names), 16)):
        for period in range(1, min((len(names) - head) // 2, 32) + 1):
            end = head + period
            while end < len(names) and names[end] == names[end - period]:
                end += 1
            times = (end - head) // period
            if times < 2:
                continue
            tail = head + times * period
            open_item = Item(closed(names[head : head + period]) if period > 1 else names[head], None)
            text = written((*closed(names[:head]), open_item, *closed(names[tail:])))
            if len(text) < len(best):
                best = text
    return best


def _folded(names: Sequence[str]) -> Items:
    """Like ``runs``, with stretches that repeat at once, as half-layers do, written once: ``(mamba mlp)*4``."""
    items = runs(names)
    found: list[Item] = []
    at = 0
    while at < len(items):
        best, saved, used = items[at], 0, 1
        for width in range(2, min((len(items) - at) // 2, _WIDEST_FOLD) + 1):
            unit = items[at : at + width]
            times = 1
            while items[at + times * width : at + (times + 1) * width] == unit:
                times += 1
            if times > 1:
                item = Item(unit, times)
                gain = len(written(unit * times)) - len(str(item))
                if gain > saved:
                    best, saved, used = item, gain, times * width
        found.append(best)
        at += used
    return tuple(found)


def runs(names: Sequence[str]) -> Items:
    """The names as closed items, equal neighbours counted."""
    items: list[Item] = []
    for name in names:
        if items and items[-1].unit == name:
            last = items.pop()
            items.append(Item(name, (last.count or 0) + 1))
        else:
            items.append(Item(name))
    return tuple(items)
