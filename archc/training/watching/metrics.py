"""``metrics.jsonl`` of a run folder: one JSON object a step, read by anything. Nothing here imports torch."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from archc.errors import ArchcError
from archc.training.watching.watcher import Quiet, Record, RunInfo

METRICS = "metrics.jsonl"


class MetricsFile(Quiet):
    """Appends a line a step, in one write, so that a killed run leaves whole lines and at most one broken at the end.

    A run that goes on from a checkpoint takes its place in the file: lines of later steps, and a broken one, are dropped.
    """

    def __init__(self) -> None:
        self._file: int | None = None

    def on_start(self, run: RunInfo) -> None:
        assert run.folder is not None, "a file of metrics lies in a run's folder"
        self._file = opened(run.folder / METRICS, run.first_step)

    def on_step(self, record: Record) -> None:
        assert self._file is not None, "on_start opens the file"
        write_line(self._file, {name: _plain(value) for name, value in record.items()})

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def opened(path: Path, first_step: int) -> int:
    """A file of lines to append to, without those of steps behind ``first_step``."""
    drop_after(path, first_step)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def write_line(file: int, data: dict[str, Any]) -> None:
    """One object as a line, at once."""
    line = (json.dumps(data, ensure_ascii=False) + "\n").encode()
    while line:
        line = line[os.write(file, line) :]


def _plain(value: float | int | None) -> float | int | None:
    """JSON has no infinity and no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def drop_after(path: Path, step: int) -> None:
    """Leave the lines of steps up to ``step`` only; the file is written beside and renamed, so that a kill loses none."""
    if not path.exists():
        return
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        changed = False
        with path.open("rb") as old, beside.open("wb") as new:
            for line in old:
                if _is_kept(line, step):
                    new.write(line)
                else:
                    changed = True
            new.flush()
            os.fsync(new.fileno())
        if changed:
            os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _is_kept(line: bytes, step: int) -> bool:
    if not line.endswith(b"\n"):
        return False
    data = _parsed(line)
    return data is not None and int(data["step"]) <= step


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        data: object = json.loads(line)
    except ValueError:
        return None
    found = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return found if isinstance(found.get("step"), int) else None


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run folder, in order of steps.

    Raises:
        ArchcError: there are none, or a line is none; a broken last one, of a run that was killed, is left out.
    """
    path = Path(folder) / METRICS
    if not path.is_file():
        raise ArchcError(f"{folder} is no run: it has no {METRICS}, which archc train -o writes")
    lines = list(_lines(path))
    if not lines:
        raise ArchcError(f"{path} has no steps yet")
    return lines


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            data = _parsed(line)
            if data is not None:
                yield data
            elif line.endswith(b"\n"):
                raise ArchcError(f"{path}:{number}: is no object with a step")
