"""The shortest pattern for a list of names: ``kda kda kda mla`` is ``kda*3 mla``, and twice that is ``(kda*3 mla)*``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def shortest_pattern(names: Sequence[str]) -> str:
    """A pattern that expands to the names, with one open part at most; of equally short ones the first found.

    Raises:
        ValueError: there are no names.
    """
    if not names:
        raise ValueError("a schedule needs a layer")
    best = _runs(names)
    count = len(names)
    if len(set(names)) == 1:
        return names[0]
    for unit in range(1, count // 2 + 1):
        for start in range(min(unit, count - 2 * unit) + 1):
            repeats = 1
            while names[start + repeats * unit : start + (repeats + 1) * unit] == names[start : start + unit]:
                repeats += 1
            if repeats < 2:
                continue
            head, tail = names[:start], names[start + repeats * unit :]
            inner = _runs(names[start : start + unit])
            middle = f"{inner}*" if unit == 1 else f"({inner})*"
            text = " ".join(part for part in (_runs(head), middle, _runs(tail)) if part)
            if len(text) < len(best):
                best = text
    return best


def _runs(names: Sequence[str]) -> str:
    parts: list[str] = []
    for name, group in groupby(names):
        length = len(list(group))
        parts.append(name if length == 1 else f"{name}*{length}")
    return " ".join(parts)
