"""Rows of a plan: each weight and state of a distinct layer once, whole and as one rank holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeVar

from archc.graph.graph import join
from archc.ir.size import Dim
from archc.planning.parallel import Parallel
from archc.planning.sharding import ShardedParam, ShardedState, Stage
from archc.planning.training.weights import WeightOptions, cut_by_zero, weight_bytes, zero_ranks
from archc.units import tensor_bytes

Cut = tuple[int, str, str, int]
"""(dimension, its logical axis, ``tp`` or ``ep``, pieces)."""


@dataclass(slots=True)
class WeightRow:
    """A weight by the name that it has in a layer, and the layers of all stages that have it so.

    ``local`` is the piece that tp and ep leave a rank, ``rests`` what of it lies there between steps: under ZeRO-3 the first
    rank's, the largest. ``held_by`` are the ranks of a stage that hold the same at rest, and ``why`` says why tp leaves more than
    one. ``gathered_bytes`` are of ``local`` in the model's dtype, ``resting_bytes`` of what rests, both of one layer.
    """

    layer: str
    kind: str
    name: str
    trainable: bool
    whole: tuple[int, ...]
    local: tuple[int, ...]
    rests: tuple[int, ...]
    cuts: tuple[Cut, ...]
    held_by: int
    why: str
    gathered_bytes: int
    resting_bytes: int
    layers: int = 0
    stages: list[int] = field(default_factory=list[int])

    @property
    def is_cut(self) -> bool:
        """Whether tp or ep cut it; ZeRO cuts every row alike."""
        return bool(self.cuts)

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "kind": self.kind,
            "name": self.name,
            "trainable": self.trainable,
            "layers": self.layers,
            "stages": self.stages,
            "shape": list(self.whole),
            "local_shape": list(self.local),
            "resting_shape": list(self.rests),
            "cuts": [{"dim": dim, "axis": axis, "by": by, "pieces": ways} for dim, axis, by, ways in self.cuts],
            "held_by_ranks": self.held_by,
            "why": self.why,
            "gathered_bytes_per_layer": self.gathered_bytes,
            "resting_bytes_per_layer": self.resting_bytes,
        }


@dataclass(slots=True)
class StateRow:
    """A state likewise; sizes are symbolic: ``batch``, ``past``, ``seq`` (new tokens), ``capacity`` (rows of a full cache)."""

    layer: str
    kind: str
    name: str
    growth: str
    whole: tuple[Dim, ...]
    local: tuple[Dim, ...]
    copies: int
    why: str
    layers: int = 0
    stages: list[int] = field(default_factory=list[int])

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "kind": self.kind,
            "name": self.name,
            "growth": self.growth,
            "layers": self.layers,
            "stages": self.stages,
            "shape": [str(dim) for dim in self.whole],
            "local_shape": [str(dim) for dim in self.local],
            "held_by_ranks": self.copies,
            "why": self.why,
        }


Row = TypeVar("Row", WeightRow, StateRow)


def weight_rows(stages: list[Stage], parallel: Parallel, options: WeightOptions) -> list[WeightRow]:
    """The weights of all stages in order of execution, layers of one label and one shape in one row."""
    found: dict[tuple[Any, ...], WeightRow] = {}
    for stage in stages:
        for piece in stage.params:
            row = _weight_row(piece, parallel, options)
            # A tied table stands on the stage of each of its users.
            key = (row.layer, row.kind if row.layer else "", row.name, row.whole, row.cuts, row.why)
            row = found.setdefault(key, row)
            row.layers += piece.count
            if stage.index not in row.stages:
                row.stages.append(stage.index)
    return _by_layer(list(found.values()))


def _weight_row(piece: ShardedParam, parallel: Parallel, options: WeightOptions) -> WeightRow:
    copies, is_shared = held_by(piece, parallel, options.zero)
    rests = piece.shape
    if options.zero == 3 and piece.param.trainable:
        rests = cut_by_zero(piece.shape, zero_ranks(piece, parallel))
    dtype = options.moved_dtype(piece) if options.zero == 3 else options.param_dtype(piece)
    cuts = tuple((dim, piece.param.axes[dim] or "", by, ways) for dim, (by, ways) in piece.cuts.items())
    return WeightRow(
        piece.layer,
        piece.kind,
        join(piece.path, piece.param.name) if piece.layer else piece.names[0],
        piece.param.trainable,
        piece.param.shape,
        piece.shape,
        rests,
        cuts,
        copies,
        piece.why if is_shared else "",
        tensor_bytes(piece.elements, options.param_dtype(piece)),
        tensor_bytes(prod(rests), dtype if piece.param.trainable else options.param_dtype(piece)),
    )


def held_by(piece: ShardedParam, parallel: Parallel, zero: int) -> tuple[int, bool]:
    """(ranks that hold the same piece between steps, whether tp or ep leave it to several); a stage's ranks are looked at."""
    ranks = zero_ranks(piece, parallel)
    is_cut = zero == 3 and piece.param.trainable
    if piece.is_expert and parallel.ep > 1:
        return 1 if is_cut else ranks, False
    return piece.copies * (1 if is_cut else ranks), piece.copies > 1


def state_rows(stages: list[Stage]) -> list[StateRow]:
    """The states of all stages likewise."""
    found: dict[tuple[Any, ...], StateRow] = {}
    for stage in stages:
        for placed in stage.states:
            row = _state_row(placed)
            key = (row.layer, row.kind, row.name, str(row.whole), str(row.local), row.why)
            row = found.setdefault(key, row)
            row.layers += placed.count
            if stage.index not in row.stages:
                row.stages.append(stage.index)
    return _by_layer(list(found.values()))


def _state_row(placed: ShardedState) -> StateRow:
    state, local = placed.state, placed.local
    name = join(placed.path, state.name) if placed.layer else state.name
    return StateRow(placed.layer, placed.kind, name, state.growth, state.used, local.used, placed.copies, placed.why)


def _by_layer(rows: list[Row]) -> list[Row]:
    """Rows of one layer side by side, layers in order of first use: a later stage may bring another row of an earlier one."""
    order = {name: number for number, name in enumerate(dict.fromkeys(row.layer for row in rows))}
    return sorted(rows, key=lambda row: order[row.layer])


def replicated_bytes(stage: Stage, parallel: Parallel, options: WeightOptions) -> int:
    """Bytes of the weights, at rest, that a rank holds and another one as well."""
    shared = [piece for piece in stage.params if held_by(piece, parallel, options.zero)[0] > 1]
    found = weight_bytes([replace(stage, params=shared)], parallel, options)
    return found.parameters + found.buffers + (found.masters if options.zero == 3 else 0)


def layer_gathers(stages: list[Stage], options: WeightOptions) -> Iterator[tuple[str, int]]:
    """(label, bytes of the weights that ZeRO gathers for one layer of it, the largest); the label is empty outside of layers."""
    sizes: dict[str, int] = {}
    for stage in stages:
        by_name: dict[tuple[str, str], int] = {}
        for piece in stage.params:
            if piece.param.trainable:
                own = tensor_bytes(piece.elements, options.param_dtype(piece))
                for prefix in piece.prefixes:
                    by_name[piece.layer, prefix] = by_name.get((piece.layer, prefix), 0) + own
        for (label, _), count_bytes in by_name.items():
            sizes[label] = max(sizes.get(label, 0), count_bytes)
    yield from sizes.items()
