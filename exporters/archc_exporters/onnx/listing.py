"""Long lists of weights' names, said in full and yet short: names that differ in a number become one with a range."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby


def listed(names: Iterable[str]) -> str:
    """All names, comma-separated; ``layers.0.x, layers.1.x, layers.2.x`` is ``layers.{0-2}.x``."""
    # First by the last number of a name (experts in a layer), then by the first (layers).
    return ", ".join(_ranged(_ranged(names, -1), 0))


def _ranged(names: Iterable[str], which: int) -> list[str]:
    """Names equal but for one of their numbers as one, with a range for each run of numbers."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        parts = name.split(".")
        places = [place for place, part in enumerate(parts) if part.isascii() and part.isdecimal()]
        if places:
            place = places[which]
            key = (".".join([*parts[:place], ""]), ".".join(["", *parts[place + 1 :]]))
            numbers.setdefault(key, []).append(int(parts[place]))
        else:
            numbers.setdefault((name, ""), [])
    return [
        f"{before}{number}{after}" for (before, after), found in numbers.items() for number in (_runs(found) or [""])
    ]


def _runs(numbers: list[int]) -> list[str]:
    """``[0, 1, 2, 5]`` as ``{0-2}`` and ``5``."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0])
    ]
    return [str(run[0]) if len(run) == 1 else f"{{{run[0]}-{run[-1]}}}" for run in runs]
