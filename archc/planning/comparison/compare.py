"""Architectures side by side: each quantity in a row, each model in a column."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Unpack

from archc.errors import ArchcError
from archc.planning.comparison.measures import MEASURES, Measure, Number, measures
from archc.planning.models import Model, Options, Source, Stated, common_length, open_models

COMPARE_CONVENTIONS: dict[str, str] = {
    "least": "the least of a row of bytes, FLOPs or times is marked: the cheapest, which says nothing about what a model can do",
    "at": "cache: of the whole batch at so many tokens; decode: the last of them; prefill: all of them from an empty cache",
    "training": "forward and backward of whole sequences of that length, over their tokens",
}
"""Topic -> what its numbers mean."""


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of all models, in the order of their columns; None where a model has no such cost.

    ``name`` ends in its unit; ``length`` in tokens is None where the quantity does not depend on one.
    """

    name: str
    title: str
    unit: str
    length: int | None
    values: tuple[Number | None, ...]

    @property
    def least(self) -> tuple[int, ...]:
        """Columns with the least value, where the row is a cost and not all columns are alike."""
        known = [value for value in self.values if value is not None]
        if self.unit == "parameters" or len(set(known)) < 2:
            return ()
        return tuple(column for column, value in enumerate(self.values) if value == min(known))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "length": self.length,
            "values": list(self.values),
        }


@dataclass(slots=True)
class Comparison:
    """Several models at the same batch and lengths, in tokens; the values of every row are in the order of ``models``.

    ``overrides`` hold for all of them.
    """

    models: list[str]
    lengths: tuple[int, ...]
    options: Options
    overrides: tuple[str, ...]
    rows: list[Row]

    def row(self, name: str, length: int | None = None) -> Row:
        """The row of a quantity, at a length where it depends on one.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if (row.name, row.length) == (name, length):
                return row
        raise KeyError((name, length))

    def to_json(self) -> dict[str, Any]:
        """Plain data; counts, bytes and FLOPs are integers, FLOPs a token of training may be no whole number."""
        return {
            "models": self.models,
            "options": {"lengths": list(self.lengths), **self.options.to_json(), "overrides": list(self.overrides)},
            "rows": [row.to_json() for row in self.rows],
            "conventions": COMPARE_CONVENTIONS,
        }

    def to_csv(self) -> str:
        """A row a quantity, a column a model, exact numbers; a value that a model has not is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("quantity", "unit", "length_tokens", *self.models))
        for row in self.rows:
            values = ("" if value is None else value for value in row.values)
            writer.writerow((row.name, row.unit, "" if row.length is None else row.length, *values))
        return text.getvalue()


def compare(
    sources: Sequence[Source] | Source,
    *,
    at: Sequence[int] | int | None = None,
    overrides: Sequence[str] = (),
    **stated: Unpack[Stated],
) -> Comparison:
    """Several specs, graphs, files or shipped names at the same lengths, in tokens.

    ``at`` defaults to the least context length that they state; ``overrides`` are ``path=value`` for each of them;
    further keywords are those of ``archc.planning.models.Options``.

    Raises:
        ArchcError: a spec has problems, or an option is none for it.
    """
    options = Options(**stated)
    models = open_models(sources, overrides)
    lengths = common_lengths(models, at)
    costs = {length: [measures(model, length, options) for model in models] for length in lengths}
    first = costs[lengths[0]]
    names = sorted({name for found in first for name in found}, key=MEASURES.index)
    rows = [_row(first, name, None) for name in names if not _shown(first, name).is_at_length]
    for name in names:
        if _shown(first, name).is_at_length:
            found = [_row(costs[length], name, length) for length in lengths]
            rows += found if name != "train_step_flops" else [*found, *(_training(row, options) for row in found)]
    # What no model has is no difference between them.
    told = [row for row in rows if any(row.values)]
    return Comparison([model.label for model in models], lengths, options, tuple(overrides), told)


def common_lengths(models: Sequence[Model], at: Sequence[int] | int | None) -> tuple[int, ...]:
    """The lengths asked for, each once, else the one that all models are made for.

    Raises:
        ArchcError: one is less than a token.
    """
    lengths = (at,) if isinstance(at, int) else tuple(dict.fromkeys(at or (common_length(models),)))
    for length in lengths:
        if length < 1:
            raise ArchcError(f"at: a length should be at least 1 token (found {length})")
    return lengths


def _shown(found: Sequence[dict[str, Measure]], name: str) -> Measure:
    return next(measure for model in found if (measure := model.get(name)) is not None)


def _row(found: Sequence[dict[str, Measure]], name: str, length: int | None) -> Row:
    shown = _shown(found, name)
    values = tuple(model[name].total if name in model else None for model in found)
    return Row(name, shown.title, shown.unit, length, values)


def _training(row: Row, options: Options) -> Row:
    """FLOPs of training a token: what is published."""
    assert row.length is not None
    tokens = options.batch_size * row.length
    values = tuple(None if value is None else _number(Fraction(value) / tokens) for value in row.values)
    return Row("train_flops_per_token", "training FLOPs a token", row.unit, row.length, values)


def _number(value: Fraction) -> Number:
    return int(value) if value.denominator == 1 else float(value)
