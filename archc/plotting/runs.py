"""Charts of training runs as numbers: loss, learning rate, gradient norm and tokens a second over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from archc.errors import ArchcError
from archc.spec.near import nearest
from archc.training.watching.metrics import METRICS, read_metrics

RUN_CHARTS: dict[str, tuple[str, str]] = {
    "loss": ("loss", "nats a target"),
    "lr": ("learning rate", ""),
    "grad_norm": ("norm of all gradients", ""),
    "tokens_per_s": ("tokens a second", "tokens/s"),
}
"""Key of a step's record -> title and unit of its chart."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """Values of one run after each of the steps; ``is_held_out``: of data that was only looked at."""

    run: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    is_held_out: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "held_out": self.is_held_out,
            "steps": list(self.steps),
            "values": list(self.values),
        }


@dataclass(frozen=True, slots=True)
class RunChart:
    """One quantity of several runs over the steps."""

    what: str
    title: str
    unit: str
    lines: tuple[RunLine, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "title": self.title,
            "unit": self.unit,
            "lines": [line.to_json() for line in self.lines],
        }


def is_run(source: object) -> bool:
    """Whether a folder holds the numbers of a run."""
    return isinstance(source, str | PathLike) and (Path(fspath(source)) / METRICS).is_file()


def run_charts(folders: Sequence[str | PathLike[str]], what: Sequence[str] = ("all",)) -> tuple[str, list[RunChart]]:
    """(title, charts) of runs that lie in folders, each under the shortest end of its path that tells it from others.

    Raises:
        ArchcError: a folder is no run, or there is no such chart.
    """
    names = _named(what)
    labels = _labels([Path(fspath(folder)) for folder in folders])
    records = [read_metrics(folder) for folder in folders]
    charts: list[RunChart] = []
    for name in names:
        title, unit = RUN_CHARTS[name]
        lines = [_line(label, found, name) for label, found in zip(labels, records, strict=True)]
        if name == "loss":
            held_out = [_line(label, found, "eval_loss") for label, found in zip(labels, records, strict=True)]
            lines += [RunLine(line.run, line.steps, line.values, True) for line in held_out if line.steps]
        charts.append(RunChart(name, title, unit, tuple(lines)))
    return ", ".join(labels), charts


def _named(what: Sequence[str]) -> tuple[str, ...]:
    known = (*RUN_CHARTS, "all")
    for name in what:
        if name not in known:
            near = nearest(name, known)
            hint = f"; did you mean {near}?" if near else f"; known are {', '.join(known)}"
            raise ArchcError(f"what: there is no chart {name!r} of a run{hint}")
    return tuple(RUN_CHARTS) if "all" in what else tuple(dict.fromkeys(what))


def _line(label: str, records: Sequence[dict[str, Any]], name: str) -> RunLine:
    """The steps at which there is a number."""
    found = [(int(record["step"]), float(record[name])) for record in records if record.get(name) is not None]
    return RunLine(label, tuple(step for step, _ in found), tuple(value for _, value in found))


def _labels(folders: Sequence[Path]) -> list[str]:
    paths = [folder.resolve().parts for folder in folders]
    length = 1
    while len({parts[-length:] for parts in paths}) < len(set(paths)):
        length += 1
    labels = ["/".join(parts[-length:]) for parts in paths]
    seen: dict[str, int] = {}
    found: list[str] = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return found
