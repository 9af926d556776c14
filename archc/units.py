"""dtypes and bytes: the one place that knows how wide a dtype is and how a byte count is printed."""

from __future__ import annotations

import re

DTYPE_BITS = {
    "float64": 64,
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int64": 64,
    "int32": 32,
    "int8": 8,
    "int4": 4,
    "bool": 8,
}
"""Bits of one element, by torch's dtype name."""

SPEC_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "int4")
"""dtypes that a spec may state."""

SHORT_DTYPES = {
    "f32": "float32",
    "fp32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
}
"""Short forms, for the command line only."""


def dtype_name(text: str) -> str:
    """Torch's name of a dtype given by its name or its short form; the text itself when it is neither."""
    return SHORT_DTYPES.get(text, text)


def tensor_bytes(elements: int, dtype: str) -> int:
    """Bytes of a tensor; sub-byte elements are packed and rounded up to whole bytes."""
    return -(-elements * DTYPE_BITS[dtype] // 8)


def power(number: float, decimals: int = 2) -> str:
    """A number too large for any prefix that people know: 2.26e33."""
    return f"{number:.{decimals}e}".replace("e+", "e")


def gib(count_bytes: int) -> str:
    """A byte count for people: binary units, three decimals above a KiB."""
    if count_bytes >= 1 << 90:
        return f"{power(count_bytes, 3)} B"
    for exponent, letter in zip(range(8, 0, -1), "YZEPTGMK", strict=True):
        size = 1 << (10 * exponent)
        if count_bytes >= size:
            return f"{count_bytes / size:.3f} {letter}iB"
    return f"{count_bytes} B"


def si(count: int) -> str:
    """A count for people: 48.12 G, 1.03 T."""
    if count >= 10**21:
        return power(count)
    for unit, size in (("E", 10**18), ("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return str(count)


MAX_NUMBER = 10**18
"""The largest number that a person may write: a thousand times 1e15 tokens, and every product still has few digits."""

_NUMBER = re.compile(
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?) ?(?P<unit>[A-Za-z]*)"
)
_BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12, "p": 10**15}
_BYTES = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1 << (10 * power) for power, letter in enumerate("kmgtp", 1)},
}


def parse_length(text: str) -> int:
    """Tokens of a length as people write it: ``4096``, ``131,072``, ``128k`` = 131,072, ``1M`` = 1,048,576, ``1e6``.

    Raises:
        ValueError: it is no length, no whole number of tokens, or out of range; the message says which.
    """
    return _parsed(text, _BINARY, "length", "lengths are written as 4096, 128k (131,072) or 1M (1,048,576)", "tokens")


def parse_bytes(text: str) -> int:
    """Bytes of a size as people write it: ``2GB`` = 2 x 10^9, ``2GiB`` = 2^31, ``512 MiB``, ``80e9``.

    Raises:
        ValueError: it is no size, no whole number of bytes, or out of range; a unit like ``G``, which is either, is none.
    """
    known = "sizes are written as 2GB (2,000,000,000) or 2GiB (2,147,483,648)"
    return _parsed(text, _BYTES, "number of bytes", known, "bytes")


def parse_count(text: str) -> int:
    """A number of parameters, tokens or the like, decimal and exact: ``7e9``, ``7B``, ``405B``, ``15.6T``, ``7,241,732,096``.

    Raises:
        ValueError: it is no count, no whole number, or out of range.
    """
    return _parsed(text, _DECIMAL, "count", "counts are written as 7e9, 7B (10^9) or 15.6T (10^12)", "")


def _parsed(text: str, units: dict[str, int], what: str, known: str, counted: str) -> int:
    """A decimal number and one of ``units`` behind it, as an integer; no float is ever made."""
    from decimal import Context, Decimal

    found = _NUMBER.fullmatch(text.strip()) if len(text) <= 64 else None
    unit = found["unit"].lower() if found else None
    if found is None or unit not in units:
        raise ValueError(f"{_short(text)} is no {what}; {known}")
    exact = Context(prec=128)
    number = exact.multiply(Decimal(re.sub("[,_]", "", found["number"])), Decimal(units[unit]))
    if not 1 <= number <= MAX_NUMBER:
        raise ValueError(f"{_short(text)} should be at least 1 and at most 10^18{f' {counted}' if counted else ''}")
    if number != number.to_integral_value():
        raise ValueError(f"{_short(text)} is no whole number{f' of {counted}' if counted else ''}: {number:f}")
    return int(number)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
