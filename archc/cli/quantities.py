"""Numbers of any unit for people, as the tables of comparisons print them."""

from __future__ import annotations

from archc.units import gib, si

_EXACT_BYTES = 1 << 20
"""Fewer bytes are printed as they are: what a token takes is compared with published tables."""


def shown(value: float | None, unit: str) -> str:
    """A count, bytes, FLOPs or seconds; a dash for what a model has not."""
    if value is None:
        return "-"
    if unit == "s":
        return seconds(value)
    number = round(value)
    if unit == "B":
        return f"{number:,} B" if number < _EXACT_BYTES else gib(number)
    return si(number)


def seconds(value: float) -> str:
    """A time in the unit that fits it."""
    if not value:
        return "0 s"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value * 1e6:,.2f} us"


def changed(value: float | None, unit: str) -> str:
    """A difference with its sign."""
    return "-" if value is None else "0" if value == 0 else f"{'-' if value < 0 else '+'}{shown(abs(value), unit)}"
