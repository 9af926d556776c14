"""Every combination of some keys' values, and what each costs: ``archc.sweep``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from archc.errors import ArchcError, Problem, SpecError
from archc.planning.search.sweep_costs import METRICS, Number, Sizes, columns, names
from archc.planning.search.sweep_engine import Engine
from archc.planning.search.sweep_parts import Choice
from archc.planning.search.sweep_values import MAX_VALUES, keys_of, shown
from archc.spec.load import read_tree

LENGTHS_TOKENS = (4096, 131072)
"""Where costs are given unless the caller says otherwise."""

Progress = Callable[[str, int, int], None]
"""(what is being done, how many are done, of how many)."""

_REPORTED_EVERY = 100


class VariantError(ArchcError):
    """The first variant that is no spec, where none may be."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One row of a sweep: the varied keys' values, then the numbers of the columns, or why there are none."""

    values: tuple[Any, ...]
    numbers: tuple[Number, ...]
    error: str = ""

    @property
    def cells(self) -> tuple[Any, ...]:
        """One a column of the sweep."""
        return (*self.values, *self.numbers, self.error or None)


class Sweep:
    """The variants of a spec, each made when it is asked for. Iterating gives a ``Variant`` a time, the last key fastest.

    ``columns`` names the cells of a row: the keys as they were given, the metrics' columns, ``error``.
    """

    def __init__(self, engine: Engine, metrics: Sequence[str]) -> None:
        self._engine = engine
        self.keys = tuple(key.name for key in engine.keys)
        self.metrics = columns(metrics, engine.sizes.lengths)
        known = names(engine.sizes.lengths)
        self._places = [known.index(name) for name in self.metrics]
        self.columns = (*self.keys, *self.metrics, "error")

    def __len__(self) -> int:
        return math.prod(key.number for key in self._engine.keys)

    def __iter__(self) -> Iterator[Variant]:
        return self.variants()

    def variants(self, *, strict: bool = False, progress: Progress | None = None) -> Iterator[Variant]:
        """The rows in order.

        Raises:
            VariantError: one is invalid and ``strict`` is given.
        """
        shown_values = [[shown(key.node(index)) for index in range(key.number)] for key in self._engine.keys]
        total = len(self)
        for done, choice in enumerate(itertools.product(*(range(key.number) for key in self._engine.keys))):
            if progress is not None and done % _REPORTED_EVERY == 0:
                progress("variants", done, total)
            values = tuple([known[index] for known, index in zip(shown_values, choice, strict=True)])
            yield self._variant(values, choice, strict=strict)
        if progress is not None:
            progress("variants", total, total)

    def _variant(self, values: tuple[Any, ...], choice: Choice, *, strict: bool) -> Variant:
        try:
            found = self._engine.totals(choice).numbers()
        except ArchcError as error:
            if strict:
                stated = ", ".join(f"{name}={value}" for name, value in zip(self.keys, values, strict=True))
                raise VariantError(f"{stated}: {one_line(error)}") from None
            return Variant(values, (None,) * len(self.metrics), one_line(error))
        return Variant(values, tuple([found[place] for place in self._places]))

    @property
    def num_expanded(self) -> int:
        """Variants so far that were expanded and estimated in whole, since something in them was new."""
        return self._engine.num_slow


@dataclass(frozen=True, slots=True)
class SweepTable:
    """A finished sweep. ``rows`` have a cell for each of ``columns``; where a variant is invalid its numbers are None."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    num_invalid: int

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"columns": list(self.columns), "num_invalid": self.num_invalid, "variants": self.records()}


def open_sweep(
    spec: str | PathLike[str],
    vary: Iterable[str] | Mapping[str, Sequence[Any]],
    *,
    at: Sequence[int] = LENGTHS_TOKENS,
    batch_size: int = 1,
    overrides: Sequence[str] = (),
    metrics: Sequence[str] = tuple(METRICS),
) -> Sweep:
    """As ``sweep``, with nothing computed yet.

    Raises:
        ArchcError: as ``sweep``.
    """
    sizes = checked_sizes(at, batch_size)
    tree, file = read_tree(str(spec), overrides)
    keys = keys_of(vary, tree, file)
    number = math.prod(key.number for key in keys)
    if number > MAX_VALUES:
        counts = " x ".join(f"{key.number:,}" for key in keys)
        raise ArchcError(f"{number:,} variants ({counts}) are more than {MAX_VALUES:,}; vary fewer values at once")
    return Sweep(Engine(tree, file, keys, sizes), metrics)


def sweep(
    spec: str | PathLike[str],
    vary: Iterable[str] | Mapping[str, Sequence[Any]],
    *,
    at: Sequence[int] = LENGTHS_TOKENS,
    batch_size: int = 1,
    overrides: Sequence[str] = (),
    metrics: Sequence[str] = tuple(METRICS),
    strict: bool = False,
    progress: Progress | None = None,
) -> SweepTable:
    """What every combination of some keys' values costs.

    ``spec`` is a file or a shipped name; ``vary`` maps keys to their values (``{"mixers.kda.num_heads": [16, 32]}``), or has
    texts as the command line takes them; ``at`` are lengths in tokens, ``overrides`` hold for all variants.

    Raises:
        ArchcError: the spec can't be read, a key, a length or a metric is none, there are too many variants, or with ``strict``
            one of them is invalid.
    """
    found = open_sweep(spec, vary, at=at, batch_size=batch_size, overrides=overrides, metrics=metrics)
    rows: list[tuple[Any, ...]] = []
    num_invalid = 0
    for variant in found.variants(strict=strict, progress=progress):
        num_invalid += bool(variant.error)
        rows.append(variant.cells)
    return SweepTable(found.columns, tuple(rows), num_invalid)


def checked_sizes(at: Sequence[int], batch_size: int) -> Sizes:
    """Lengths and a batch that can be counted at.

    Raises:
        ArchcError: there is no length, one stands twice, or a number is below 1.
    """
    problems = [
        Problem(message=f"{name} should be at least 1 (found {value})", code="option")
        for name, value in (("batch_size", batch_size), *(("at", length) for length in at))
        if value < 1
    ]
    if not at:
        problems.append(Problem(message="at should name a length", code="option"))
    if len(set(at)) < len(at):
        problems.append(Problem(message="at names a length twice", code="option"))
    if problems:
        raise SpecError(problems)
    return Sizes(batch_size, tuple(at))


def one_line(error: ArchcError) -> str:
    """Why a variant is none, without the places in its file, which all variants share."""
    if not isinstance(error, SpecError):
        return str(error)
    return "; ".join(
        f"{problem.path}: {problem.message}" if problem.path else problem.message for problem in error.problems
    )
