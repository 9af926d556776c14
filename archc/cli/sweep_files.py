"""Tables of many rows as CSV, JSON lines or Parquet, written as they come."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from archc.cli.files import replaced

FORMATS = (".csv", ".jsonl", ".parquet")

_LARGEST = (1 << 63) - 1


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """The rows in the format of the file's ending; the file appears whole or not at all."""
    with replaced(path) as temporary:
        if path.suffix.lower() == ".parquet":
            _write_parquet(temporary, columns, rows)
            return
        with temporary.open("w", encoding="utf-8", newline="") as stream:
            write_text(stream, path.suffix.lower(), columns, rows)


def write_text(stream: TextIO, ending: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """The rows as CSV or as JSON lines."""
    if ending == ".jsonl":
        for row in rows:
            stream.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False))
            stream.write("\n")
        return
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(_cells, rows))


def _cells(row: Sequence[Any]) -> list[Any]:
    return [{True: "true", False: "false"}[cell] if isinstance(cell, bool) else cell for cell in row]


def _write_parquet(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    # An optional extra, and without types.
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    cells = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays: list[Any] = [pyarrow.array(values, type=_type(pyarrow, values)) for values in map(_alike, cells)]
    parquet.write_table(pyarrow.table(arrays, names=list(columns)), path)


def _alike(values: Sequence[Any]) -> list[Any]:
    """A column of one type: texts where values are of several, as ``2`` and ``none``."""
    kinds = {type(value).__name__ for value in values if value is not None}
    if len(kinds) < 2:
        return list(values)
    if kinds == {"int", "float"}:
        return [None if value is None else float(value) for value in values]
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def _type(pyarrow: Any, values: Sequence[Any]) -> Any:
    """The column's type; numbers that 64 bits can't hold are decimal, and stay exact."""
    first = next((value for value in values if value is not None), "")
    if isinstance(first, bool):
        return pyarrow.bool_()
    if isinstance(first, int):
        largest = max(abs(value) for value in values if value is not None)
        return pyarrow.int64() if largest <= _LARGEST else pyarrow.decimal128(38, 0)
    return pyarrow.float64() if isinstance(first, float) else pyarrow.string()
