"""The SVG file: a few shapes with classes, and the style that gives them colours on light and dark screens."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

NAMESPACE = "http://www.w3.org/2000/svg"
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"

_LIGHT = {
    "page": "#ffffff",
    "text": "#1c2024",
    "muted": "#60646c",
    "line": "#8b8d98",
    "box": "#f5f6f8",
    "edge": "#c6c9d0",
}
_DARK = {
    "page": "#111418",
    "text": "#edeef0",
    "muted": "#b0b4ba",
    "line": "#7b808a",
    "box": "#1d2127",
    "edge": "#444a54",
}

HUES = (
    ("#e3edfd", "#3b73d1", "#172b4d", "#6ea0f5"),
    ("#e2f4e5", "#2f8a45", "#15321c", "#5fc27a"),
    ("#efe6fd", "#7c4bc4", "#2c1c47", "#b794f0"),
    ("#dcf3f2", "#1c8a86", "#0f3231", "#55c4bf"),
    ("#fde6ef", "#c2447d", "#42172b", "#f08ab5"),
    ("#fdf0d5", "#b57614", "#3a2a0c", "#e3ad4d"),
    ("#fce6e2", "#c4482f", "#43190f", "#f0917c"),
    ("#e9ecf1", "#5c6773", "#252b33", "#9aa7b5"),
)
"""Fill and edge on a light page, fill and edge on a dark one, of each kind in turn."""


def style(*, is_dark: bool, scope: str = "") -> str:
    """The colours of a light or a dark screen as CSS; ``scope`` is a selector of what they hold for."""
    page, at = (_DARK, 2) if is_dark else (_LIGHT, 0)
    rules = [
        f".page{{fill:{page['page']}}}",
        f"text{{fill:{page['text']}}}",
        f".muted{{fill:{page['muted']}}}",
        f".wire{{stroke:{page['line']}}}",
        f".head{{fill:{page['line']}}}",
        f".box{{fill:{page['box']};stroke:{page['edge']}}}",
        f".frame{{stroke:{page['edge']}}}",
    ]
    for number, hue in enumerate(HUES):
        fill, edge = hue[at : at + 2]
        rules += [f".hue{number}{{fill:{fill};stroke:{edge}}}", f".bar{number}{{fill:{edge}}}"]
    return _scoped(rules, scope)


def forms(scope: str = "") -> str:
    """Fonts and lines as CSS, the same on every screen; ``scope`` is a selector of what they hold for."""
    rules = [
        f"text{{font-family:{FONTS}}}",
        f".mono{{font-family:{MONO}}}",
        ".strong{font-weight:600}",
        ".wire,.frame{fill:none}",
        ".frame{stroke-dasharray:4 3}",
    ]
    return _scoped(rules, scope)


def _scoped(rules: Sequence[str], scope: str) -> str:
    if not scope:
        return "".join(rules)
    parts = (rule.partition("{") for rule in rules)
    return "".join(f"{','.join(f'{scope} {one}' for one in names.split(','))}{{{body}" for names, _, body in parts)


STYLE = forms() + style(is_dark=False) + "@media (prefers-color-scheme: dark){" + style(is_dark=True) + "}"


class Canvas:
    """Shapes in the order in which they are painted. Lengths are pixels; x grows to the right, y downwards."""

    def __init__(self, title: str, description: str) -> None:
        self._shapes = ElementTree.Element("g")
        self._title, self._description = title, description

    def box(self, x: float, y: float, width: float, height: float, *, style: str, radius: float = 6) -> None:
        """A rounded rectangle."""
        size = {"x": _px(x), "y": _px(y), "width": _px(width), "height": _px(height), "rx": _px(radius)}
        ElementTree.SubElement(self._shapes, "rect", {**size, "class": style})

    def text(self, x: float, y: float, words: str, *, size: float, style: str = "", anchor: str = "start") -> None:
        """One line whose baseline is at y; ``anchor`` is start, middle or end."""
        given = {"x": _px(x), "y": _px(y), "font-size": _px(size)}
        if anchor != "start":
            given["text-anchor"] = anchor
        if style:
            given["class"] = style
        ElementTree.SubElement(self._shapes, "text", given).text = _legal(words)

    def wire(self, *points: tuple[float, float], has_head: bool = False) -> None:
        """Straight lines from point to point, with an arrow's head at the last where it is wanted."""
        path = "M" + "L".join(f"{_px(x)} {_px(y)}" for x, y in points)
        ElementTree.SubElement(self._shapes, "path", {"d": path, "class": "wire"})
        if has_head:
            (before_x, before_y), (x, y) = points[-2:]
            along_x, along_y = (x > before_x) - (x < before_x), (y > before_y) - (y < before_y)
            left = f"{_px(x - 6 * along_x - 3.5 * along_y)} {_px(y - 6 * along_y - 3.5 * along_x)}"
            right = f"{_px(x - 6 * along_x + 3.5 * along_y)} {_px(y - 6 * along_y + 3.5 * along_x)}"
            ElementTree.SubElement(self._shapes, "path", {"d": f"M{_px(x)} {_px(y)}L{left}L{right}Z", "class": "head"})

    def finished(self, width: float, height: float) -> str:
        """The file. It takes its own size and shrinks with the screen."""
        root = ElementTree.Element(
            "svg",
            {
                "xmlns": NAMESPACE,
                "viewBox": f"0 0 {_px(width)} {_px(height)}",
                "width": _px(width),
                "height": _px(height),
                "style": "max-width:100%;height:auto",
                "role": "img",
                "aria-labelledby": "title desc",
            },
        )
        ElementTree.SubElement(root, "title", {"id": "title"}).text = _legal(self._title)
        ElementTree.SubElement(root, "desc", {"id": "desc"}).text = _legal(self._description)
        ElementTree.SubElement(root, "style").text = STYLE
        ElementTree.SubElement(root, "rect", {"width": _px(width), "height": _px(height), "class": "page"})
        root.append(self._shapes)
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode") + "\n"


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _legal(words: str) -> str:
    """The words without characters that XML has no place for."""
    return "".join(letter if _is_legal(ord(letter)) else "\ufffd" for letter in words)


def _is_legal(code: int) -> bool:
    return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
