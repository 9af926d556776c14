"""Charts of runs on the axes that they are given."""

# Types of matplotlib's methods end in an untyped **kwargs.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from archc.plotting.runs import RunChart
from archc.plotting.style import GREY, MARKERS, colour, decimal

_SMOOTHED_FROM = 100
"""Values; of more a mean over neighbours is drawn, and they themselves pale behind it."""
_SMOOTHED_PARTS = 50


def draw_run(axes: Axes, chart: RunChart) -> None:
    """A line a run over the steps, dashed what was measured on held-out data."""
    axes.set_title(chart.title)
    axes.set_xlabel("steps")
    axes.set_ylabel(chart.unit)
    runs = list(dict.fromkeys(line.run for line in chart.lines))
    drawn = [line for line in chart.lines if line.steps]
    if not drawn:
        axes.text(0.5, 0.5, "no run says anything of it", transform=axes.transAxes, ha="center", color=GREY)
        return
    for line in drawn:
        number = runs.index(line.run)
        own = colour(number)
        if line.is_held_out:
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(line.steps, line.values, color=own, linestyle="--", marker=marker, label=f"{line.run}, held out")
            continue
        values: Sequence[float] = line.values
        if len(values) > _SMOOTHED_FROM:
            axes.plot(line.steps, values, color=own, linewidth=0.6, alpha=0.35)
            values = smoothed(values, len(values) // _SMOOTHED_PARTS)
        # A run of one step is a point.
        axes.plot(line.steps, values, color=own, marker="o" if len(values) == 1 else None, label=line.run)
    axes.yaxis.set_major_formatter(FuncFormatter(decimal))
    if len(drawn) > 1:
        axes.legend(loc="best")


def smoothed(values: Sequence[float], width: int) -> list[float]:
    """The mean over so many values up to and with each."""
    found: list[float] = []
    for place in range(len(values)):
        near = values[max(0, place + 1 - width) : place + 1]
        found.append(sum(near) / len(near))
    return found
