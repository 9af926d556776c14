"""Where everything stands: a heading, a column for each stack with its folded layers, and the cards of kinds below."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from archc.drawing.folding import Fold
from archc.drawing.picture import Box, Card, Column, Layer, Picture
from archc.drawing.svg import HUES, Canvas
from archc.drawing.text import joined, shortened, width_of, wrapped

MARGIN = 16
COLUMN = 408
"""Width of the one column, so that a phone shows it in its own size."""
NARROW_COLUMN = 304
"""Width of each of several columns side by side."""
BETWEEN = 34
"""Between columns, where a decoder's wire from its encoder runs."""

TITLE, BODY, SMALL = 20, 14, 12.5
BOLD = 1.12
"""Width of a bold text over that of a plain one."""
LINE = 1.4
"""Height of a line over its font size."""
CHIP, ROW, GAP, PAD = 28, 4, 18, 6
"""Height of a sub-layer, between sub-layers of a layer, between boxes, inside a layer's frame."""
MOST_ITEMS = 60
"""Folds in a row that are drawn; of more, the middle ones are one line."""


@dataclass(frozen=True, slots=True)
class _Track:
    """The places of a column: number of a layer at the left, boxes, and brackets with counts at the right, outermost last."""

    x: float
    left: float
    width: float
    brackets: tuple[float, ...]

    @property
    def box_x(self) -> float:
        return self.x + self.left

    @property
    def middle(self) -> float:
        return self.box_x + self.width / 2


def drawn(picture: Picture) -> str:
    """The SVG of a picture."""
    many = len(picture.columns) > 1
    column = NARROW_COLUMN if many else COLUMN
    width = 2 * MARGIN + column * len(picture.columns) + BETWEEN * (len(picture.columns) - 1)
    canvas = Canvas(picture.name, picture.description or f"the architecture of {picture.name}")
    y = _heading(canvas, picture, width)
    ends: list[tuple[float, float]] = []
    bottom = y
    painters = [
        _Painter(canvas, picture.cards, part, MARGIN + number * (column + BETWEEN), column)
        for number, part in enumerate(picture.columns)
    ]
    y = max(painter.heading(y) for painter in painters)
    for painter in painters:
        end = painter.column(y)
        if ends and painter.cross is not None:
            _memory(canvas, ends[-1], painter.cross, painter.x - BETWEEN / 2)
        ends.append((painter.track.middle, end))
        bottom = max(bottom, end)
    if picture.extra is not None:
        painter = _Painter(canvas, picture.cards, picture.extra, MARGIN, column)
        bottom = painter.column(painter.heading(bottom + GAP))
    bottom = _cards(canvas, picture, bottom + GAP, width, len(picture.columns))
    return canvas.finished(width, bottom + MARGIN)


def _heading(canvas: Canvas, picture: Picture, width: float) -> float:
    inside = width - 2 * MARGIN
    y = MARGIN + TITLE
    canvas.text(MARGIN, y, shortened(picture.name, TITLE, inside), size=TITLE, style="strong")
    for line in wrapped(picture.description, SMALL, inside) if picture.description else ():
        y += SMALL * LINE
        canvas.text(MARGIN, y + 4, line, size=SMALL, style="muted")
    y += 8
    for line in joined(picture.facts, " · ", SMALL, inside):
        y += SMALL * LINE
        canvas.text(MARGIN, y, line, size=SMALL)
    return y + GAP


def _memory(canvas: Canvas, end: tuple[float, float], cross: tuple[float, float], between: float) -> None:
    """What an encoder gives, from below it to the first sub-layer that reads it."""
    (x, y), (to_x, to_y) = end, cross
    canvas.wire((x, y), (x, y + 10), (between, y + 10), (between, to_y), (to_x, to_y), has_head=True)


class _Painter:
    """One column, first its heading, then the rest.

    ``cross`` is the place of the first sub-layer that reads the encoder, once it is painted.
    """

    def __init__(self, canvas: Canvas, cards: dict[str, Card], column: Column, x: float, width: float) -> None:
        self.canvas, self.cards, self.part, self.x, self.width = canvas, cards, column, x, width
        self.cross: tuple[float, float] | None = None
        self.track = _track(column, x, width)

    def heading(self, y: float) -> float:
        """Its title and notes from y on; returns where they end."""
        part = self.part
        for line in wrapped(part.title, BODY * BOLD, self.width):
            self.canvas.text(self.x, y + BODY, line, size=BODY, style="strong")
            y += BODY * LINE
        for note in part.notes:
            for line in wrapped(note, SMALL, self.width):
                y += SMALL * LINE
                self.canvas.text(self.x, y, line, size=SMALL, style="muted")
        return y + GAP

    def column(self, y: float) -> float:
        """Everything else from y on; returns where it ends."""
        part, track = self.part, self.track
        if part.source:
            self.canvas.text(track.middle, y + SMALL, part.source, size=SMALL, style="muted", anchor="middle")
            y = self._wire(y + SMALL * LINE)
        for box in part.above:
            y = self._wire(self._box(box, y))
        y = self._items(part.layers, y)
        for box in part.below:
            y = self._box(box, self._wire(y))
        if part.result:
            y = self._wire(y)
            self.canvas.text(track.middle, y + SMALL, part.result, size=SMALL, style="muted", anchor="middle")
            y += SMALL * LINE
        return y

    def _wire(self, y: float) -> float:
        """An arrow down to what follows."""
        self.canvas.wire((self.track.middle, y + 2), (self.track.middle, y + GAP - 1), has_head=True)
        return y + GAP

    def _box(self, box: Box, y: float) -> float:
        track = self.track
        self.canvas.box(track.box_x, y, track.width, 44, style="box")
        self._pair(y + 18, box.name, box.count, "strong")
        detail = shortened(box.detail, SMALL, track.width - 20)
        self.canvas.text(track.box_x + 10, y + 35, detail, size=SMALL, style="muted")
        return y + 44

    def _pair(self, baseline: float, left: str, right: str, style: str, inset: float = 10) -> None:
        """A name at the left of the boxes and a number at their right."""
        track = self.track
        room = track.width - 2 * inset - width_of(right, SMALL) - 8
        self.canvas.text(track.box_x + inset, baseline, shortened(left, BODY, room), size=BODY, style=style)
        self.canvas.text(track.box_x + track.width - inset, baseline, right, size=SMALL, style="muted", anchor="end")

    def _items(self, folds: tuple[Fold[Layer], ...], y: float, *, first: int | None = 0, depth: int = 0) -> float:
        """Folds in a row with arrows between them; ``first`` is the number of the first layer, None inside a repeat."""
        for number, (one, start) in enumerate(_numbered(folds, first)):
            y = self._wire(y) if number else y
            if isinstance(one, int):
                words = f"{one:,} more layers"
                self.canvas.text(self.track.middle, y + BODY, words, size=BODY, style="muted", anchor="middle")
                y += BODY * LINE
                continue
            top = y
            y = (
                self._layer(one.layer, y)
                if one.layer is not None
                else self._items(one.row, y, first=None, depth=depth + 1)
            )
            if start is not None:
                last = start + one.length - 1
                label = f"{start:,}" if start == last else f"{start:,}–{last:,}"
                place = self.track.box_x - 6
                self.canvas.text(place, top + 19, label, size=SMALL, style="muted", anchor="end")
            if one.count > 1:
                self._bracket(top, y, one.count, _depth(one) - 1)
        return y

    def _bracket(self, top: float, bottom: float, count: int, level: int) -> None:
        track = self.track
        x = track.box_x + track.width + 5 + sum(track.brackets[:level])
        self.canvas.wire((x, top + 1), (x + 5, top + 1), (x + 5, bottom - 1), (x, bottom - 1))
        self.canvas.text(x + 10, (top + bottom) / 2 + BODY * 0.35, f"× {count:,}", size=BODY, style="strong")

    def _layer(self, layer: Layer, y: float) -> float:
        track = self.track
        height = 2 * PAD + len(layer) * CHIP + (len(layer) - 1) * ROW
        self.canvas.box(track.box_x, y, track.width, height, style="frame", radius=9)
        at = y + PAD
        for role, name in layer:
            card = self.cards[name]
            style = f"hue{card.hue % len(HUES)}"
            self.canvas.box(track.box_x + PAD, at, track.width - 2 * PAD, CHIP, style=style)
            words = f"cross: {name}" if role == "cross" else name
            room = track.width - 2 * (PAD + 10) - width_of(card.size, SMALL) - 8
            if card.kind != name and width_of(f"{words} ({card.kind})", BODY) <= room:
                words = f"{words} ({card.kind})"
            self._pair(at + 19, words, card.size, "", inset=PAD + 10)
            if role == "cross" and self.cross is None:
                self.cross = (track.box_x + PAD, at + CHIP / 2)
            at += CHIP + ROW
        return y + height


def _numbered(folds: tuple[Fold[Layer], ...], first: int | None) -> list[tuple[Fold[Layer] | int, int | None]]:
    """Folds with the number of their first layer; where there are too many, a count stands for those in the middle."""
    starts = [
        None if first is None else start for start in accumulate((one.length for one in folds), initial=first or 0)
    ]
    found: list[tuple[Fold[Layer] | int, int | None]] = [*zip(folds, starts, strict=False)]
    if len(folds) <= MOST_ITEMS:
        return found
    half = MOST_ITEMS // 2
    return [*found[:half], (sum(one.length for one in folds[half:-half]), None), *found[-half:]]


def _depth(one: Fold[Layer]) -> int:
    """Brackets at a fold and inside it."""
    inner = max((_depth(part) for part in one.row), default=0)
    return inner + (one.count > 1)


def _counts(one: Fold[Layer]) -> list[tuple[int, int]]:
    """(level, count) of every bracket at a fold and inside it; level 0 is the innermost."""
    found = [pair for part in one.row for pair in _counts(part)]
    return [*found, (_depth(one) - 1, one.count)] if one.count > 1 else found


def _track(column: Column, x: float, width: float) -> _Track:
    brackets: dict[int, float] = {}
    for level, count in (pair for one in column.layers for pair in _counts(one)):
        brackets[level] = max(brackets.get(level, 0), 16 + width_of(f"× {count:,}", BODY))
    last = sum(one.length for one in column.layers) - 1
    left = 8 + width_of(f"{last:,}–{last:,}", SMALL)
    widths = tuple(brackets[level] for level in sorted(brackets))
    return _Track(x, left, max(width - left - sum(widths), 120), widths)


def _cards(canvas: Canvas, picture: Picture, y: float, width: float, columns: int) -> float:
    """The cards, each in the column that ends first."""
    ends = [y] * columns
    inside = (width - 2 * MARGIN - 12 * (columns - 1)) / columns
    for card in picture.cards.values():
        at = ends.index(min(ends))
        ends[at] = _card(canvas, card, MARGIN + at * (inside + 12), ends[at], inside) + 10
    return max(ends) - 10


def _card(canvas: Canvas, card: Card, x: float, y: float, width: float) -> float:
    lines = [
        *wrapped(card.parameters, SMALL, width - 28),
        *(line for told in card.kept for line in wrapped(told, SMALL, width - 28)),
    ]
    keys = joined(card.keys, " · ", SMALL, width - 28)
    height = 10 + BODY * LINE + (len(lines) + len(keys)) * SMALL * LINE + 8
    canvas.box(x, y, width, height, style="box")
    canvas.box(x, y, 6, height, style=f"bar{card.hue % len(HUES)}", radius=3)
    at = y + 10 + BODY
    words = f"{card.family} {card.name}" if card.kind == card.name else f"{card.family} {card.name} ({card.kind})"
    canvas.text(x + 16, at, shortened(words, BODY, width - 28), size=BODY, style="strong")
    for line, style in [*((line, "") for line in lines), *((line, "muted") for line in keys)]:
        at += SMALL * LINE
        canvas.text(x + 16, at, line, size=SMALL, style=style)
    return y + height
