"""What someone meant who wrote a pattern that doesn't come out, or something else in its place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from archc.spec.near import listed
from archc.spec.nodes import is_list
from archc.spec.patterns import (
    MAX_LAYERS,
    Item,
    Items,
    PatternError,
    closed_length,
    copies,
    expand,
    one_copy,
    pattern_of,
    runs,
    written,
)
from archc.spec.scalars import shortened

_RATIO = re.compile(r"([1-9][0-9]{0,2}):([1-9][0-9]{0,2})")


def misfit(items: Items, num_layers: int) -> PatternError:
    """Why a pattern does not come to ``num_layers``, and the patterns that do."""
    length = closed_length(items)
    opened = next((item for item in items if item.count is None), None)
    if opened is None:
        fixes = [f"{written(fix)} ({_counted(fix, num_layers)})" for fix in _fixes(items, num_layers)]
        hint = f"Did you mean {listed(fixes, 'or')}?" if fixes else ""
        return PatternError(f"{_layers(length)}, but the stack has {num_layers:,}", hint)
    period = opened.unit_length
    if num_layers < length + period:
        return PatternError(f"at least {_layers(length + period)}, but the stack has {num_layers:,}")
    over = (num_layers - length) % period
    left = "1 is left over" if over == 1 else f"{over} are left over"
    if length == 0:
        tail = written((*items, *runs(one_copy(opened)[:over])))
        return PatternError(
            f"{_layers(num_layers)} are no multiple of {period}: {left}", f"Say what they are, e.g. {shortened(tail)}"
        )
    fits = f"It comes to {num_layers - over:,} or {num_layers - over + period:,} layers"
    if num_layers - over - length < period:
        fits = f"It comes to {num_layers - over + period:,} layers"
    return PatternError(f"{_layers(num_layers)} less {length:,} are no multiple of {period}: {left}", fits)


def _fixes(items: Items, num_layers: int) -> Iterator[Items]:
    """Open the last item; repeat the whole."""
    candidates = [(*items[:-1], Item(items[-1].unit, None))]
    if len(items) > 1:
        candidates.append((Item(items, None),))
    for candidate in candidates:
        if copies(candidate, num_layers) is not None:
            yield candidate


def _counted(items: Items, num_layers: int) -> str:
    counts = Counter(expand(items, num_layers))
    if len(counts) > 1 and len(set(counts.values())) == 1:
        return f"{next(iter(counts.values()))} of each"
    return shortened(", ".join(f"{count} {name}" for name, count in counts.items()))


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count:,} layers" if count < 10**15 else "far too many layers"


def ratio(word: str, names: Sequence[str], num_layers: int | None) -> str:
    """The pattern that a ratio such as ``3:1`` of two names stands for; empty when ``word`` is no ratio."""
    found = _RATIO.fullmatch(word)
    if found is None:
        return ""
    first, second = names if len(names) == 2 else ("a", "b")
    counts = int(found[1]), int(found[2])
    unit = (Item(first, counts[0]), Item(second, counts[1]))
    pattern = written((Item(unit, None),))
    text = f"{word} of {first} and {second} is {pattern}"
    over = num_layers % sum(counts) if num_layers and num_layers >= sum(counts) else 0
    if not over:
        return text
    tail = written(runs([first] * (over - 1) + [second]))
    are = "is" if over == 1 else "are"
    return f"{text}; over {num_layers} layers {over} {are} left, so end it, e.g. {pattern} {tail}"


def layer_numbers(value: Mapping[str, Any], names: Sequence[str], num_layers: int | None) -> str:
    """The pattern behind lists of layer numbers, counted from 1 and from 0; empty when it can't be told."""
    lists = {key: layers for key, layers in value.items() if is_list(layers)}
    owners = _owners(list(lists), names)
    if owners is None or num_layers is None:
        return ""
    numbered: list[tuple[int, str]] = []
    for key, layers in lists.items():
        if not all(isinstance(layer, int) and 0 <= layer <= MAX_LAYERS for layer in layers):
            return ""
        numbered += [(layer, owners[key]) for layer in layers]
    numbered.sort()
    order = [layer for layer, _ in numbered]
    answers: list[str] = []
    for base, other in ((1, 0), (0, 1)):
        if order == list(range(base, base + num_layers)):
            answers.append(
                f"Counted from {base} these lists are {shortened(pattern_of([name for _, name in numbered]))}"
            )
            end = num_layers - 1 + other
            answers.append(f"counted from {other} they don't fit, {num_layers} layers end at {end}")
    return "; ".join(answers)


def _owners(keys: Sequence[str], names: Sequence[str]) -> dict[str, str] | None:
    """Which name each list is about: by the name inside the key, and the last one by what is left."""
    owners = {key: name for key in keys for name in names if name in key.split("_")}
    left_keys = [key for key in keys if key not in owners]
    left_names = [name for name in names if name not in owners.values()]
    if len(left_keys) == 1 and len(left_names) == 1:
        owners[left_keys[0]] = left_names[0]
    return owners if len(owners) == len(keys) == len(set(owners.values())) else None
