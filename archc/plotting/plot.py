"""``archc.plot``: charts of one or several models, as data, as a matplotlib figure, and as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from archc.errors import ArchcError, MissingExtraError
from archc.graph.graph import Graph
from archc.planning.comparison.curves import (
    FIRST_LENGTH_TOKENS,
    LAST_LENGTH_TOKENS,
    Bars,
    Curves,
    cache_curves,
    flops_curves,
    lengths_between,
    parameter_bars,
)
from archc.planning.comparison.rooflines import RooflineChart, roofline_charts
from archc.planning.models import Model, Options, Source, Stated, common_length, open_models
from archc.plotting.runs import RunChart, is_run, run_charts
from archc.spec.near import nearest
from archc.spec.schema import Spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHARTS = ("cache", "flops", "parameters", "roofline")
"""What can be drawn, in the order in which it is; a roofline only where a device is named."""

ENDINGS = (".png", ".svg", ".pdf")

_NAMED_MODELS = 3


@dataclass(slots=True)
class Plot:
    """Charts in one picture; ``title`` says of what models, and with which options."""

    title: str
    charts: list[Curves | Bars | RooflineChart | RunChart]

    def to_json(self) -> dict[str, Any]:
        """The numbers that are drawn."""
        return {"title": self.title, "charts": [chart.to_json() for chart in self.charts]}

    def figure(self) -> Figure:
        """The picture as matplotlib's, to be changed or drawn upon.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return _drawing().drawn(self.charts, self.title)

    def picture(self, ending: str) -> bytes:
        """The picture as a file's content: ``.png``, ``.svg`` or ``.pdf``; the same charts give the same bytes.

        Raises:
            ArchcError: it is another ending.
            MissingExtraError: matplotlib is not installed.
        """
        if ending not in ENDINGS:
            raise ArchcError(f"a picture ends in {', '.join(ENDINGS)} (found {ending or 'no ending'})")
        return _drawing().saved(self.charts, self.title, ending)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture, in the form that the path's ending says.

        Raises:
            ArchcError: it is no ending of a picture.
            MissingExtraError: matplotlib is not installed.
        """
        data = self.picture(Path(path).suffix.lower())
        Path(path).write_bytes(data)


def plot(
    sources: Sequence[Source] | Source,
    *,
    what: str | Sequence[str] = "all",
    at: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    **stated: Unpack[Stated],
) -> Plot:
    """Charts of specs, graphs, files or shipped names: ``cache``, ``flops``, ``parameters``, ``roofline``, or ``all``.

    Folders of training runs have others: ``loss``, ``lr``, ``grad_norm``, ``tokens_per_s``, or ``all``, and no further keywords.

    Curves go from the least to the greatest length of ``at``, in tokens; one length is marked in curves from 1k to 1M. A
    roofline is of the greatest one, by default the least context length of the models, on ``gpu``; ``all`` has one where a
    device is named. Further keywords are those of ``archc.planning.models.Options``.

    Raises:
        ArchcError: a spec has problems, there is no such chart, or an option is none for a model.
    """
    given: Sequence[Any] = [sources] if isinstance(sources, str | PathLike | Spec | Graph) else sources
    if any(map(is_run, given)):
        return _of_runs(given, what, is_plain=not at and not overrides and Options(**stated) == Options())
    options = Options(**stated)
    names = charts_named(what, has_device=options.gpu is not None)
    models = open_models(sources, overrides)
    lengths, marks = _span(at)
    charts: list[Curves | Bars | RooflineChart | RunChart] = []
    for name in names:
        if name == "parameters":
            charts.append(parameter_bars(models, options))
        elif name == "roofline":
            charts += roofline_charts(models, max(at) if at else common_length(models), options)
        else:
            curves = (cache_curves if name == "cache" else flops_curves)(models, lengths, options)
            charts.append(replace(curves, marks=marks))
    return Plot(_title(models, options, overrides), charts)


def _of_runs(sources: Sequence[Any], what: str | Sequence[str], *, is_plain: bool) -> Plot:
    others = [source for source in sources if not is_run(source)]
    if others:
        raise ArchcError(
            f"{', '.join(map(str, others))}: no training run, and the others are; runs are drawn by themselves"
        )
    if not is_plain:
        raise ArchcError("a run's charts take no lengths, overrides or options of costs")
    title, charts = run_charts(sources, (what,) if isinstance(what, str) else what)
    return Plot(title, [*charts])


def charts_named(what: str | Sequence[str], *, has_device: bool) -> tuple[str, ...]:
    """Names of charts, ``all`` replaced by all that can be drawn.

    Raises:
        ArchcError: one is no chart, or a roofline is wanted of no device.
    """
    names = (what,) if isinstance(what, str) else tuple(dict.fromkeys(what))
    known = (*CHARTS, "all")
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"; did you mean {near}?" if near else f"; known are {', '.join(known)}"
            raise ArchcError(f"what: there is no chart {name!r}{hint}")
    if "roofline" in names and not has_device:
        raise ArchcError("what: a roofline is that of a device; name one as gpu")
    everything = tuple(name for name in CHARTS if has_device or name != "roofline")
    return everything if "all" in names else names


def _span(at: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths of the curves, and those that are marked."""
    stated = sorted(set(at or ()))
    if stated and stated[0] < 1:
        raise ArchcError(f"at: a length should be at least 1 token (found {stated[0]})")
    if len(stated) > 1:
        return lengths_between(stated[0], stated[-1]), tuple(stated[1:-1])
    ends = [FIRST_LENGTH_TOKENS, LAST_LENGTH_TOKENS, *stated]
    return tuple(sorted({*lengths_between(min(ends), max(ends)), *stated})), tuple(stated)


def _title(models: Sequence[Model], options: Options, overrides: Sequence[str]) -> str:
    names = ", ".join(model.label for model in models[:_NAMED_MODELS])
    if len(models) > _NAMED_MODELS:
        names = f"{len(models)} models"
    return " · ".join([names, options.stated(), *overrides])


def _drawing() -> Any:
    """The modules that draw, which take matplotlib."""
    try:
        from archc.plotting import figure
    except ImportError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise MissingExtraError("plot", "a chart") from None
    return figure
