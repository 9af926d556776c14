"""What is otherwise between two architectures, in structure and in every cost, and which parts and keys it comes from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from archc.graph.graph import Graph
from archc.graph.lock_diff import difference
from archc.graph.lockfile import to_lock
from archc.planning.comparison.alone import Alone, Trial, trials
from archc.planning.comparison.measures import Measure, Number, layers_by_part, measures
from archc.planning.comparison.structure import KeyChange, LayerChange, key_changes, layer_changes, layer_counts
from archc.planning.models import Model, Options, Stated, all_loaded, common_length, open_model
from archc.spec.resolved import resolved

MAX_TRIALS = 100
"""Keys that are changed alone to see what each does; one takes some milliseconds."""

DIFF_CONVENTIONS: dict[str, str] = {
    "difference": "of B and A: what B has more; ratio: B / A; the parts' differences sum to that of the whole, counts exactly",
    "share": "the part's difference over the whole one; parts that go the other way are negative, so shares may exceed 100%",
    "alone": (
        "what a key does by itself: A with this key as in B and nothing else changed; a stack's patterns and number of layers "
        "are one change. A dash is for what makes no valid spec alone; changes that act on each other leave a rest"
    ),
}
"""Topic -> what its numbers mean."""


@dataclass(slots=True)
class PartChange:
    """What a part of the model costs in A and in B; ``layers`` are those that have it, 0 outside the layers.

    ``keys`` maps a key of the spec to what it changes here alone.
    """

    part: str
    a: Number
    b: Number
    layers_a: int = 0
    layers_b: int = 0
    keys: dict[str, Number] = field(default_factory=dict[str, Number])

    @property
    def difference(self) -> Number:
        return self.b - self.a

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "a": self.a,
            "b": self.b,
            "difference": self.difference,
            "layers_a": self.layers_a,
            "layers_b": self.layers_b,
            "keys_alone": self.keys,
        }


@dataclass(slots=True)
class QuantityChange:
    """A cost of A and of B, None where a model has no such cost, and the parts that it changes in, largest first."""

    name: str
    title: str
    unit: str
    a: Number | None
    b: Number | None
    is_at_length: bool
    by_part: list[PartChange]

    @property
    def difference(self) -> Number | None:
        """B less A; None where one of them has no such cost."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def ratio(self) -> float | None:
        """B over A; None where that is no number."""
        return self.b / self.a if self.a and self.b is not None else None

    def share(self, part: PartChange) -> float | None:
        """The part of the difference that comes from a part; None where the whole does not differ."""
        return part.difference / self.difference if self.difference else None

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "unit": self.unit,
            "a": self.a,
            "b": self.b,
            "difference": self.difference,
            "ratio": self.ratio,
            "by_part": [{**part.to_json(), "share": self.share(part)} for part in self.by_part],
        }


@dataclass(slots=True)
class Diff:
    """Two architectures side by side; ``length`` in tokens is that of every cost that depends on one.

    ``graph`` has a line for each op, weight, state or flow of values that differs in layers that are called alike.
    """

    a: str
    b: str
    length: int
    options: Options
    keys: list[KeyChange]
    layers: list[LayerChange]
    layer_counts: tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]
    graph: list[str]
    quantities: dict[str, QuantityChange]
    alone: list[Alone]

    @property
    def is_different(self) -> bool:
        """Whether anything but the name and the description differs."""
        return bool(self.keys or self.layers or self.graph)

    def rest(self, quantity: str) -> Number | None:
        """The difference that no key makes alone: what keys do together; None where the quantity has no difference."""
        whole = self.quantities[quantity].difference
        return None if whole is None else whole - sum(each.differences.get(quantity, 0) for each in self.alone)

    def to_json(self) -> dict[str, Any]:
        """Plain data; counts, bytes and FLOPs are integers."""
        return {
            "a": self.a,
            "b": self.b,
            "options": {"length": self.length, **self.options.to_json()},
            "is_different": self.is_different,
            "keys": [change.to_json() for change in self.keys],
            "layers": [change.to_json() for change in self.layers],
            "layer_counts": {"a": self.layer_counts[0], "b": self.layer_counts[1]},
            "graph": self.graph,
            "quantities": {name: change.to_json() for name, change in self.quantities.items()},
            "keys_alone": [each.to_json() for each in self.alone],
            "conventions": DIFF_CONVENTIONS,
        }


def diff(
    a: str | PathLike[str],
    b: str | PathLike[str] | None = None,
    *,
    overrides: Sequence[str] = (),
    overrides_a: Sequence[str] = (),
    overrides_b: Sequence[str] = (),
    length: int | None = None,
    **stated: Unpack[Stated],
) -> Diff:
    """What is otherwise in ``b``, a file or a shipped name, by default ``a`` again with ``overrides_b``.

    ``overrides`` are ``path=value`` for both. ``length`` in tokens defaults to the least context length that they state;
    further keywords are those of ``archc.planning.models.Options``.

    Raises:
        ArchcError: a spec has problems, or an option is none for them.
    """
    options = Options(**stated)
    set_a, set_b = ([*overrides, *own] for own in (overrides_a, overrides_b))
    other = a if b is None else b
    one, two = all_loaded((partial(resolved, Path(a), set_a), partial(resolved, Path(other), set_b)))
    labels = _labels((a, one.spec.name, set_a), (other, two.spec.name, set_b))
    models = [open_model(found.spec, label=label) for found, label in zip((one, two), labels, strict=True)]
    at = length or common_length(models)
    costs = [measures(model, at, options) for model in models]
    keys = key_changes(one.tree, two.tree)
    tried = list(islice(trials(keys, a, set_a, at, options, costs[0]), MAX_TRIALS))
    return Diff(
        a=labels[0],
        b=labels[1],
        length=at,
        options=options,
        keys=keys,
        layers=layer_changes(one.spec, two.spec),
        layer_counts=(layer_counts(one.spec), layer_counts(two.spec)),
        graph=_graph_changes(models[0].graph, models[1].graph),
        quantities=_quantities(models, costs, tried),
        alone=[trial.summary for trial in tried],
    )


def _labels(*models: tuple[str | PathLike[str], str, Sequence[str]]) -> list[str]:
    """Names with what was set; where those are alike, the files."""
    labels = [", ".join([name, *(text.strip() for text in overrides)]) for _, name, overrides in models]
    return labels if labels[0] != labels[1] else [os.fspath(file) for file, _, _ in models]


def _graph_changes(a: Graph, b: Graph) -> list[str]:
    locks = [to_lock(graph) for graph in (a, b)]
    for lock in locks:
        for each in (lock, lock.get("mtp")):
            if each is not None:
                each["name"] = ""
    return difference(*locks).changes


def _quantities(
    models: Sequence[Model], costs: Sequence[dict[str, Measure]], tried: Sequence[Trial]
) -> dict[str, QuantityChange]:
    layers_a, layers_b = (layers_by_part(model.graph) for model in models)
    found: dict[str, QuantityChange] = {}
    for name in dict.fromkeys((*costs[0], *costs[1])):
        a, b = (side.get(name) for side in costs)
        shown = a or b
        assert shown is not None
        rows: list[PartChange] = []
        for part in dict.fromkeys((*a.by_part, *b.by_part)) if a and b else ():
            before, after = (side.by_part.get(part, 0) if side else 0 for side in (a, b))
            if before != after:
                keys = {trial.summary.label: effect for trial in tried if (effect := trial.effect(name, part))}
                layer = part[:2]
                row = PartChange(".".join(part), before, after, layers_a.get(layer, 0), layers_b.get(layer, 0), keys)
                rows.append(row)
        # Sorting is stable, so that equal shares stay in the order of the graph.
        rows.sort(key=lambda row: -abs(row.difference))
        total_a, total_b = (None if side is None else side.total for side in (a, b))
        found[name] = QuantityChange(name, shown.title, shown.unit, total_a, total_b, shown.is_at_length, rows)
    return found
