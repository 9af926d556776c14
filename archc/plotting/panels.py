"""The charts by themselves: each draws numbers of ``archc.planning`` on the axes that it is given."""

# Types of matplotlib's methods end in an untyped **kwargs.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import offset_copy

from archc.planning.comparison.curves import Bars, Curves
from archc.planning.comparison.rooflines import RooflineChart
from archc.plotting.style import GREY, MARKERS, binary_bytes, colour, decimal, length_axis, log_axis, tokens

_STEP_LINES: dict[str, Any] = {"": "-", "decode": "-", "forward": "-.", "prefill": (0, (4, 2))}
_STEP_TITLES = {"decode": "decode, at that length", "forward": "forward, mean", "prefill": "prefill, mean"}
_TITLE_CHARACTERS = 48
_ROOF_STEPS = {"decode": "decode, one token"}
_ROOM = 2.2
"""Around the values on a logarithmic axis: even a constant has a tick below and one above."""
_BARS_IN_PANEL = 2.6
"""Places that a panel has room for; fewer bars don't grow to fill it."""
_LEGEND_INSIDE = 6
_LEGEND_POINTS = -34
_MARKER_SPACING = 8
"""Points of a curve from one marker to the next: markers tell curves apart where colours can't."""


def draw_curves(axes: Axes, curves: Curves) -> None:
    """A line a model and step over the length, both axes logarithmic."""
    axes.set_title(curves.title)
    models = list(dict.fromkeys(curve.model for curve in curves.curves))
    drawn = [curve for curve in curves.curves if any(curve.values)]
    for curve in drawn:
        number = models.index(curve.model)
        axes.plot(
            curve.lengths,
            curve.values,
            color=colour(number),
            linestyle=_STEP_LINES[curve.step],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            # Markers of two curves that lie on each other stand side by side.
            markevery=(number % _MARKER_SPACING, _MARKER_SPACING),
            label=f"{curve.model} {curve.step}".strip(),
        )
    if not drawn:
        axes.text(0.5, 0.5, "no model keeps a cache", transform=axes.transAxes, ha="center", color=GREY)
        return
    length_axis(axes, drawn[0].lengths)
    is_bytes = curves.unit == "B"
    axes.set_yscale("log", base=2 if is_bytes else 10)
    values = [value for curve in drawn for value in curve.values if value]
    low, high = min(values), max(values)
    if is_bytes:
        log_axis(axes.yaxis, low, high, 2, binary_bytes)
        axes.set_ylabel("bytes (GiB = 2³⁰)")
    else:
        log_axis(axes.yaxis, low, high, 10, decimal)
        axes.set_ylabel("FLOPs (G = 10⁹, T = 10¹²)")
    axes.set_ylim(low / _ROOM, high * _ROOM)
    for length in curves.marks:
        axes.axvline(length, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), zorder=0)
        axes.annotate(
            tokens(length),
            (length, 1),
            (2, -2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
            fontsize=7,
            color=GREY,
        )
    _legend(axes, curves, models)


def _legend(axes: Axes, curves: Curves, models: list[str]) -> None:
    """Models by colour, steps by line where there are several."""
    drawn = {(curve.model, curve.step) for curve in curves.curves if any(curve.values)}
    handles = [
        Line2D([], [], color=colour(number), marker=MARKERS[number % len(MARKERS)], markersize=4, label=model)
        for number, model in enumerate(models)
        if any(model == name for name, _ in drawn)
    ]
    steps = [step for step in _STEP_TITLES if any(step == found for _, found in drawn)]
    if len(handles) == 1 and len(steps) <= 1:
        handles = []
    if steps:
        handles += [Line2D([], [], color=GREY, linestyle=_STEP_LINES[step], label=_STEP_TITLES[step]) for step in steps]
    if len(handles) > _LEGEND_INSIDE:
        # Behind so many names no curve would be seen.
        _legend_below(axes, 3, handles=handles)
    elif handles:
        axes.legend(handles=handles, loc="upper left")


def _legend_below(axes: Axes, columns: int, **what: Any) -> None:
    """A legend under the axis' own label, however high the axes are."""
    figure: Any = axes.figure
    below = offset_copy(axes.transAxes, figure, y=_LEGEND_POINTS, units="points")
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=below,
        ncols=columns,
        columnspacing=1.2,
        **what,
    )


def draw_bars(axes: Axes, bars: Bars, numbers: dict[str, int]) -> None:
    """Bars of equal length divided by groups of parts; what they stand for is written behind them.

    ``numbers`` gives each part the number of its colour, in all charts of a figure the same.
    """
    axes.set_title("parameters by part")
    places = _places(bars)
    left = [0.0] * len(places)
    for number, group in enumerate(bars.groups):
        widths = [100 * bar.counts[number] / (bar.total or 1) for bar in bars.bars]
        axes.barh(
            places,
            widths,
            height=[0.34 if bar.is_active else 0.56 for bar in bars.bars],
            left=left,
            color=colour(numbers[group]),
            edgecolor="white",
            linewidth=0.5,
            label=group,
        )
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for place, bar in zip(places, bars.bars, strict=True):
        text = f"{_rounded(bar.total)}{' active' if bar.is_active else ''}"
        axes.annotate(text, (100, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    named = [(place, bar.model) for place, bar in zip(places, bars.bars, strict=True) if not bar.is_active]
    axes.set_yticks([place for place, _ in named], [name for _, name in named])
    axes.tick_params(axis="y", length=0)
    margin = max(0.6, (_BARS_IN_PANEL - places[-1]) / 2)
    axes.set_ylim(places[-1] + margin, -margin)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the parameters (%)")
    _legend_below(axes, min(4, len(bars.groups)))


def _places(bars: Bars) -> list[float]:
    """Where each bar stands: that of the active parameters close under that of all."""
    places: list[float] = []
    for bar in bars.bars:
        step = 0.0 if not places else 0.5 if bar.is_active else 1.0
        places.append((places[-1] if places else 0.0) + step)
    return places


def _rounded(count: int) -> str:
    return decimal(float(f"{count:.3g}"))


def draw_roofline(axes: Axes, chart: RooflineChart, numbers: dict[str, int]) -> None:
    """The roof of a device and the parts of a model under it: by colour the part, by marker the step."""
    roof = chart.roof
    axes.set_title(textwrap.fill(f"roofline: {chart.model} at {tokens(chart.length)}", _TITLE_CHARACTERS))
    intensities = [point.flops_per_byte for point in chart.points]
    ridge = roof.ridge_flops_per_byte
    low, high = min([*intensities, ridge / 100]) / _ROOM, max([*intensities, ridge * 10]) * _ROOM
    for peak, bandwidth, line, label in (
        (roof.peak_flops_per_s, roof.device.bandwidth_bytes_per_s, (0, (4, 2)), f"{roof.device.name}, {roof.dtype}"),
        (roof.flops_per_s, roof.bytes_per_s, "-", "taken to be reached"),
    ):
        corners = [low, peak / bandwidth, high]
        axes.plot(
            corners, [min(peak, x * bandwidth) for x in corners], color=GREY, linestyle=line, linewidth=1.4, label=label
        )
    parts = list(dict.fromkeys(point.part for point in chart.points))
    steps = list(dict.fromkeys(point.step for point in chart.points))
    for point in chart.points:
        axes.plot(
            [point.flops_per_byte],
            [point.flops_per_s],
            color=colour(numbers[point.part]),
            marker=MARKERS[steps.index(point.step)],
            # The area says how much of its step a part takes.
            markersize=4 + 8 * point.share**0.5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            linestyle="none",
        )
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    bottom = min([point.flops_per_s for point in chart.points] or [low * roof.bytes_per_s]) / _ROOM
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, roof.peak_flops_per_s * _ROOM)
    log_axis(axes.xaxis, low, high, 10, decimal)
    log_axis(axes.yaxis, bottom, roof.peak_flops_per_s * _ROOM, 10, decimal)
    axes.set_xlabel("FLOPs a byte moved")
    axes.set_ylabel("FLOP/s (T = 10¹²)")
    handles = [
        *(Line2D([], [], linestyle="none", color=colour(numbers[part]), marker="o", label=part) for part in parts),
        *(
            Line2D([], [], linestyle="none", color=GREY, marker=MARKERS[n], label=_ROOF_STEPS.get(step, step))
            for n, step in enumerate(steps)
        ),
        *axes.get_lines()[:2],
    ]
    axes.legend(handles=handles, loc="lower right")
