"""How wide a text will be, without a font: letters are as wide as in wide sans-serif fonts, so that lines stay in their boxes."""

from __future__ import annotations

from collections.abc import Sequence

_NARROW = frozenset("iljtfrI.,:;|!'`()[]/ ·*-")
_WIDE = frozenset("mwMWGOQ@%—")


def width_of(text: str, size: float) -> float:
    """Width in pixels at a font size in pixels, rather too large than too small."""
    return sum(_letter(letter) for letter in text) * size


def _letter(letter: str) -> float:
    if letter in _NARROW:
        return 0.38
    if letter in _WIDE:
        return 0.9
    if ord(letter) > 0x2E80:
        # Ideographs fill their square.
        return 1.0
    return 0.7 if letter.isupper() else 0.58


def wrapped(text: str, size: float, width: float) -> list[str]:
    """The text in lines no wider than ``width``, broken at spaces; a longer word is cut."""
    return joined(text.split(" "), " ", size, width)


def joined(parts: Sequence[str], between: str, size: float, width: float) -> list[str]:
    """Parts in as few lines as hold them, with a separator between those of a line; a part that is too wide is broken itself."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{between}{part}" if lines else part
        if lines and width_of(longer, size) <= width:
            lines[-1] = longer
        elif width_of(part, size) <= width:
            lines.append(part)
        elif " " in part and between != " ":
            lines += wrapped(part, size, width)
        else:
            lines.append(shortened(part, size, width))
    return lines


def shortened(text: str, size: float, width: float) -> str:
    """The text, or its beginning and an ellipsis."""
    if width_of(text, size) <= width:
        return text
    while text and width_of(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text}…"
