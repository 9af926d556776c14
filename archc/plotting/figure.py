"""Charts put together: one figure, a file of it, both the same whoever draws them and wherever."""

# Types of matplotlib's methods end in an untyped **kwargs.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from archc.planning.comparison.curves import Bars, Curves
from archc.planning.comparison.rooflines import RooflineChart
from archc.plotting.panels import draw_bars, draw_curves, draw_roofline
from archc.plotting.run_panels import draw_run
from archc.plotting.runs import RunChart
from archc.plotting.style import STYLE

Chart = Curves | Bars | RooflineChart | RunChart

_PANEL_INCHES = (5.6, 3.7)
_INCHES_PER_BAR = 0.27
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
        rows = [charts[first : first + 2] for first in range(0, len(charts), 2)]
        across = len(rows[0])
        heights = [max(map(_height, row)) for row in rows]
        width = _PANEL_INCHES[0] * across
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.03)
        figure = Figure(figsize=(width, sum(heights) + 0.35), layout=layout)
        FigureCanvasAgg(figure)
        lines = textwrap.wrap(title, int(width * _TITLE_CHARACTERS_PER_INCH))
        figure.suptitle("\n".join(lines), fontsize=9, color="#444444", x=0.01, ha="left")
        grid = figure.add_gridspec(len(rows), across, height_ratios=heights)
        numbers = {part: number for number, part in enumerate(dict.fromkeys(_parts(charts)))}
        for down, row in enumerate(rows):
            for place, chart in enumerate(row):
                # A last chart without a neighbour has the whole row.
                axes = figure.add_subplot(grid[down, place] if len(row) == across else grid[down, :])
                if isinstance(chart, Bars):
                    draw_bars(axes, chart, numbers)
                elif isinstance(chart, RooflineChart):
                    draw_roofline(axes, chart, numbers)
                elif isinstance(chart, RunChart):
                    draw_run(axes, chart)
                else:
                    draw_curves(axes, chart)
    return figure


def _height(chart: Chart) -> float:
    """Inches that a chart wants: more where many bars stand in it."""
    usual = _PANEL_INCHES[1]
    return max(usual, _INCHES_PER_BAR * len(chart.bars) + 1.6) if isinstance(chart, Bars) else usual


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
