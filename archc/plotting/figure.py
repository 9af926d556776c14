"""Charts put together: one figure, a file of it, both the same whoever draws them and wherever."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from archc.planning.curves import Bars, Curves
from archc.planning.rooflines import RooflineChart
from archc.plotting.panels import draw_bars, draw_curves, draw_roofline
from archc.plotting.style import STYLE

Chart = Curves | Bars | RooflineChart

_PANEL_INCHES = (5.6, 3.7)
_DOTS_PER_INCH = 110
_TITLE_CHARACTERS_PER_INCH = 13

_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": "archc"},
    ".svg": {"Date": None, "Creator": "archc"},
    ".pdf": {"CreationDate": None, "Creator": "archc", "Producer": "archc"},
}
"""What files say of themselves; with a date no two would be equal."""


def drawn(charts: Sequence[Chart], title: str) -> Figure:
    """The figure of some charts, two beside each other."""
    assert charts, "a figure needs a chart"
    with mpl.rc_context(STYLE):
        across = min(2, len(charts))
        down = math.ceil(len(charts) / across)
        width, height = _PANEL_INCHES
        figure = Figure(
            figsize=(width * across, height * down + 0.35),
            layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.03),
        )
        FigureCanvasAgg(figure)
        lines = textwrap.wrap(title, int(width * across * _TITLE_CHARACTERS_PER_INCH))
        figure.suptitle("\n".join(lines), fontsize=9, color="#444444", x=0.01, ha="left")
        numbers = {part: number for number, part in enumerate(dict.fromkeys(_parts(charts)))}
        for number, chart in enumerate(charts, 1):
            # A last chart without a neighbour has the whole row.
            is_alone = number == len(charts) and number % across == 1 and across > 1
            place = (number, number + 1) if is_alone else number
            axes = figure.add_subplot(down, across, place)
            if isinstance(chart, Bars):
                draw_bars(axes, chart, numbers)
            elif isinstance(chart, RooflineChart):
                draw_roofline(axes, chart, numbers)
            else:
                draw_curves(axes, chart)
    return figure


def _parts(charts: Sequence[Chart]) -> Iterator[str]:
    """Parts that have a colour, in the order in which they are met."""
    for chart in charts:
        if isinstance(chart, Bars):
            yield from chart.groups
        elif isinstance(chart, RooflineChart):
            yield from (point.part for point in chart.points)


def saved(charts: Sequence[Chart], title: str, ending: str) -> bytes:
    """The figure as the content of a file: ``.png``, ``.svg``, ``.pdf``."""
    out = io.BytesIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A character that the font lacks is a box; a name is no reason to stop.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = drawn(charts, title)
        figure.savefig(out, format=ending[1:], dpi=_DOTS_PER_INCH, metadata=_METADATA[ending])
    return out.getvalue()
