"""How charts look: colours that anyone can tell apart, axes in tokens, bytes and FLOPs, files that are the same every time."""

# Types of matplotlib's methods end in an untyped **kwargs.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#595959", "#B8A900")
"""Okabe and Ito's colours (Color Universal Design, 2008), the yellow darker so that a thin line of it is seen on white, and
grey for black, which the text has."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""One fewer than colours, so that no two of many models have both alike."""

GREY = "#8a8a8a"

STYLE: Any = {
    "svg.hashsalt": "archc",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "text.parse_math": False,
}
"""Settings that every chart is drawn with, whatever the reader's own are."""

_MAX_TICKS = 7

_FEW_DECADES = 3
"""Up to so many decades have ticks between powers of ten."""


def colour(number: int) -> str:
    """The colour of the model or part of that number; after the last the first follows."""
    return COLOURS[number % len(COLOURS)]


def tokens(value: float, _: Any = None) -> str:
    """A length as people write it: 4k, 128k, 1M."""
    number = round(value)
    for unit, size in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)):
        if number >= size and number % (size >> 3) == 0:
            return f"{number / size:g}{unit}"
    return f"{number:,}"


def binary_bytes(value: float, _: Any = None) -> str:
    """Bytes in the largest binary unit that they fill."""
    for unit, size in (
        ("EiB", 1 << 60),
        ("PiB", 1 << 50),
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"


def decimal(value: float, _: Any = None) -> str:
    """A count with a decimal prefix: 1 G, 250 T."""
    for unit, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def log_axis(axis: Axis, low: float, high: float, base: int, formatter: Any) -> None:
    """Ticks at powers of ``base`` (2 or 10) around two values, few enough to read and enough to read off a value."""
    first, last = (edge(round(math.log(value, base), 6)) for edge, value in ((math.floor, low), (math.ceil, high)))
    if base == 10 and last - first <= _FEW_DECADES:
        ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
    else:
        step = max(1, -(-(last - first) // (_MAX_TICKS - 1)))
        ticks = [float(base) ** power for power in range(first - step, last + step + 1, step)]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(formatter))


def length_axis(axes: Axes, lengths: tuple[int, ...]) -> None:
    """The x axis in tokens, by powers of 2."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(lengths[0], lengths[-1])
    log_axis(axes.xaxis, lengths[0], lengths[-1], 2, tokens)
    axes.set_xlabel("length (tokens)")
