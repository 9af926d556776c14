"""Maps as heat maps: a panel for each, tokens on the axes, in a PNG, an SVG or a page of its own."""

from __future__ import annotations

import html
import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

MAX_PANELS = 64
_LABELLED_PANEL = 40
"""Tokens on an axis that are written out in the only panel, and in one of several."""
_LABELLED_IN_GRID = 24
_LONGEST_LABEL = 12
_TITLE_CHARACTERS = 36
"""Of a line above a panel in a grid."""

_STYLE: Any = {
    "svg.hashsalt": "archc",
    "svg.fonttype": "none",
    "font.size": 8,
    # Tokens are shown as they are: a dollar sign begins no formula.
    "text.parse_math": False,
}


@dataclass(frozen=True, slots=True)
class Panel:
    """A map (rows, columns) under its title, and what stands at its axes."""

    title: str
    weights: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    row_title: str = "query"
    column_title: str = "key"


def drawn(panels: Sequence[Panel], title: str, ending: str) -> bytes:
    """The picture of up to ``MAX_PANELS`` panels: ``png``, or ``svg``."""
    assert panels, "a picture needs a panel"
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A character that the font lacks is a box; in an SVG the reader's own font has it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        shown = panels[:MAX_PANELS]
        if len(panels) > MAX_PANELS:
            title = f"{title} (the first {MAX_PANELS} of {len(panels)})"
        is_single = len(shown) == 1
        across = math.ceil(math.sqrt(len(shown)))
        down = math.ceil(len(shown) / across)
        longest = max(max(panel.weights.shape) for panel in shown)
        side = min(max(3.6, 0.2 * longest), 9.0) if is_single else 2.4
        figure = Figure(figsize=(side * across + 0.9, side * down + 0.7), layout="constrained")
        figure.suptitle(title, fontsize=9)
        for number, panel in enumerate(shown, 1):
            _draw(figure, figure.add_subplot(down, across, number), panel, is_single=is_single)
        out = io.BytesIO()
        if ending == "svg":
            FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": "archc attention"})
        else:
            FigureCanvasAgg(figure)
            figure.savefig(out, format="png", dpi=110 if is_single else 90, metadata={"Software": "archc attention"})
    return out.getvalue()


def _draw(figure: Figure, axes: Any, panel: Panel, *, is_single: bool) -> None:
    weights = panel.weights.numpy()
    # Shares go from white up, by their roots, since the first rows of a causal map hold nearly all of their weight in a cell or
    # two. What may be negative has its zero in the middle.
    has_negative = float(weights.min()) < -1e-6
    largest = max(float(abs(weights).max()), 1e-12)
    image = axes.imshow(
        weights,
        cmap="RdBu_r" if has_negative else "Blues",
        norm=Normalize(-largest, largest) if has_negative else PowerNorm(0.5, 0.0, largest),
        aspect="equal" if is_single else "auto",
        interpolation="nearest",
    )
    axes.set_title(panel.title if is_single else textwrap.fill(panel.title, _TITLE_CHARACTERS), fontsize=8)
    for axis, labels in ((axes.yaxis, panel.rows), (axes.xaxis, panel.columns)):
        if len(labels) <= (_LABELLED_PANEL if is_single else _LABELLED_IN_GRID):
            axis.set_ticks(range(len(labels)), [_short(label) for label in labels], fontsize=6 if is_single else 5)
        else:
            axis.set_major_locator(MaxNLocator(integer=True))
            axis.set_tick_params(labelsize=6)
    if max(map(len, panel.columns)) > 1 and len(panel.columns) <= (_LABELLED_PANEL if is_single else _LABELLED_IN_GRID):
        axes.tick_params(axis="x", labelrotation=90)
    if is_single:
        axes.set_xlabel(panel.column_title)
        axes.set_ylabel(panel.row_title)
        figure.colorbar(image, ax=axes, shrink=0.8)


def _short(label: str) -> str:
    """A label without what no font draws, cut where it is long."""
    text = "".join(char if char.isprintable() else "\u00b7" for char in label.replace(" ", "\u2423"))
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 1]}\u2026"


def page(svg: bytes, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    """The picture and the table of its heads as one HTML file that fetches nothing."""
    # What stands before the element belongs into files of their own.
    picture = svg.decode("utf-8")
    picture = picture[picture.index("<svg") :]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        "<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
        "td,th{padding:2px 10px;text-align:right}td:first-child,th:first-child{text-align:left}"
        "svg{max-width:100%;height:auto}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{picture}\n<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n"
        "</tbody></table></body></html>\n"
    ).encode()
