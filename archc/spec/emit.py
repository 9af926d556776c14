"""Plain data to YAML that this reader, and any YAML 1.2 one, reads back as the same data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from archc.spec.nodes import Path, is_list, is_mapping
from archc.spec.scalars import ScalarError, resolve

_PLAIN = re.compile(r"(?:[A-Za-z_(]|[0-9.]+/)[A-Za-z0-9_./+()*-]*(?: [A-Za-z0-9_./+()*-]+)*")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
# Words that a YAML 1.1 reader takes for booleans or nothing.
_OLD_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def emit(tree: Mapping[str, Any], notes: Mapping[Path, str] | None = None) -> str:
    """A block mapping; ``notes`` are comments by path."""
    return "".join(f"{line}\n" for line in _lines(tree, notes or {}, ()))


def _lines(tree: Mapping[str, Any], notes: Mapping[Path, str], path: Path) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in tree.items():
        here = (*path, key)
        if is_mapping(value) and value:
            yield f"{indent}{_text(key)}:"
            yield from _lines(value, notes, here)
        else:
            note = f"  # {_one_line(notes[here])}" if here in notes else ""
            yield f"{indent}{_text(key)}: {flow(value)}{note}"


def flow(value: Any) -> str:
    """A value on one line."""
    if is_mapping(value):
        return f"{{{', '.join(f'{_text(str(key))}: {flow(item)}' for key, item in value.items())}}}"
    if is_list(value):
        return f"[{', '.join(map(flow, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return _number(value)
    return _text(str(value))


def _number(value: float) -> str:
    # repr gives 1e-05, which YAML 1.1 takes for text unless there is a point.
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    return text if not e or "." in mantissa else f"{mantissa}.0e{exponent}"


def _text(text: str) -> str:
    """The text bare where every reader takes it for text, else in double quotes."""
    if _PLAIN.fullmatch(text) and len(text) < 500 and text.lower() not in _OLD_WORDS and _is_text(text):
        return text
    return f'"{"".join(_escaped(character) for character in text)}"'


def _is_text(text: str) -> bool:
    try:
        return isinstance(resolve(text), str)
    except ScalarError:
        return False


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
