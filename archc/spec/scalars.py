"""What an unquoted YAML scalar means (YAML 1.2), and the plain number that a near miss stands for."""

from __future__ import annotations

import math
import re

from archc.spec.nodes import Scalar

_WORDS: dict[str, Scalar] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "false": False,
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NEAR_NUMBER = re.compile(r"([-+]?)0*([0-9][0-9_,]*)(\.[0-9]+)?\s*([kKmMgGbB]?)(?:i?[bB])?")
_LARGEST = 2**63 - 1
_MULTIPLES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "B": 10**9}


class ScalarError(ValueError):
    """A scalar that no place in a spec can take."""


def resolve(text: str) -> Scalar:
    """The value of an unquoted scalar: ``1e-5`` is a number; ``3:1``, ``no``, ``010`` and ``1_000`` are text.

    Raises:
        ScalarError: not a number, infinite, or too large to count anything.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _INTEGER.fullmatch(text) or _HEX.fullmatch(text):
        if len(text) > 40 or abs(number := int(text, 0)) > _LARGEST:
            raise ScalarError(f"too large a number (found {shortened(text)})")
        return int(text, 0) if number else 0
    if _FLOAT.fullmatch(text):
        value = float(text)
        if not math.isfinite(value):
            raise ScalarError(f"too large a number (found {shortened(text)})")
        return value
    if _NOT_A_NUMBER.fullmatch(text):
        raise ScalarError(f"should be finite (found {text})")
    return text


def plain_number(text: str) -> str:
    """The number that ``010``, ``1_000``, ``128K`` or a quoted ``32`` stands for; empty when it stands for none."""
    found = _NEAR_NUMBER.fullmatch(text.strip())
    if found is None or len(text) > 30:
        return ""
    sign, digits, fraction, suffix = found.groups()
    number = float(digits.replace("_", "").replace(",", "") + (fraction or "")) * _MULTIPLES[suffix.upper()]
    return f"{'-' if sign == '-' else ''}{int(number) if number == int(number) else number}"


def shortened(text: str, *, limit: int = 60) -> str:
    """A text on one line, cut where it gets too long for a message."""
    line = " ".join(text.split()) if "\n" in text or "\t" in text else text
    line = "".join(ch if ch.isprintable() else "?" for ch in line[: limit + 1])
    return line if len(line) <= limit else line[:limit] + "…"
