"""What each rank holds under the splits that a page offers: pieces of weights and states, and how many each stage has."""

from __future__ import annotations

from typing import Any

from archc.graph.graph import Graph
from archc.ir.size import product
from archc.planning.parallel import Parallel
from archc.planning.sharding import ShardedParam, ShardedState, Sharding, shard
from archc.reporting.forms import Pool, exact

TP = (1, 2, 4, 8, 16, 32)
PP = (1, 2, 4, 8)
"""Ranks that the controls offer."""

CUTS = (*((tp, 1) for tp in TP), *((tp, tp) for tp in TP[1:]))
"""(tp, ep): the channels of experts are cut like any others, or all ranks share whole experts."""

Counts = list[list[int]]
"""For each of ``PP``, how many the ranks of each stage hold."""


def cut_graph(graph: Graph) -> list[Sharding]:
    """The graph on one stage, under each of ``CUTS``."""
    return [shard(graph, Parallel(tp=tp, ep=ep)) for tp, ep in CUTS]


def ranks_of(graph: Graph, by_cut: list[Sharding], pool: Pool) -> dict[str, Any]:
    """Pieces by cut, since stages don't change them, and counts by pp, since cuts don't change those.

    ``weights``: [dtype, elements for each of ``CUTS``, counts]; ``states``: {dtype, role, used, allocated: forms for each of
    ``CUTS``, counts}. ``problems`` and ``notes`` say what can't be and what is held more than once.
    """
    by_pp = [shard(graph, Parallel(pp=pp)) for pp in PP]
    return {
        "cut_problems": [sharding.problems for sharding in by_cut],
        "pp_problems": [sharding.problems for sharding in by_pp],
        "cut_notes": [sharding.notes for sharding in by_cut],
        "pp_notes": [sharding.notes for sharding in by_pp],
        "stages": [len(sharding.stages) for sharding in by_pp],
        "has_experts": any(each.is_expert for each in by_cut[0].stages[0].params),
        "weights": _weights(by_cut, by_pp),
        "states": _states(by_cut, by_pp, pool),
    }


def _weights(by_cut: list[Sharding], by_pp: list[Sharding]) -> list[list[Any]]:
    pieces = [_params(sharding) for sharding in by_cut]
    rows: dict[tuple[Any, ...], Counts] = {}
    for key, (param, counts) in _counted([_params_by_stage(sharding) for sharding in by_pp]).items():
        local = tuple(found[key].elements for found in pieces)
        merge(rows, (param.param.dtype, local), counts)
    return [[dtype, [exact(one) for one in local], counts] for (dtype, local), counts in rows.items()]


def _states(by_cut: list[Sharding], by_pp: list[Sharding], pool: Pool) -> list[dict[str, Any]]:
    pieces = [_states_of(sharding) for sharding in by_cut]
    rows: dict[tuple[Any, ...], Counts] = {}
    for key, (placed, counts) in _counted([_states_by_stage(sharding) for sharding in by_pp]).items():
        used = tuple(pool.form(product(found[key].local.used)) for found in pieces)
        allocated = tuple(pool.form(product(found[key].local.allocated)) for found in pieces)
        merge(rows, (placed.state.dtype, placed.state.role, used, allocated), counts)
    names = ("dtype", "role", "used", "allocated")
    return [dict(zip(names, key, strict=True)) | {"counts": counts} for key, counts in rows.items()]


def _params(sharding: Sharding) -> dict[int, ShardedParam]:
    return {id(each.param): each for stage in sharding.stages for each in stage.params}


def _states_of(sharding: Sharding) -> dict[tuple[int, str], ShardedState]:
    return {(id(each.node), each.role): each for stage in sharding.stages for each in stage.states}


def _params_by_stage(sharding: Sharding) -> list[dict[int, ShardedParam]]:
    return [{id(each.param): each for each in stage.params} for stage in sharding.stages]


def _states_by_stage(sharding: Sharding) -> list[dict[tuple[int, str], ShardedState]]:
    return [{(id(each.node), each.role): each for each in stage.states} for stage in sharding.stages]


def _counted(splits: list[list[dict[Any, Any]]]) -> dict[Any, tuple[Any, Counts]]:
    """What stands in any split, with its counts on the stages of each."""
    every = {key: placed for stages in splits for stage in stages for key, placed in stage.items()}
    return {
        key: (placed, [[stage[key].count if key in stage else 0 for stage in stages] for stages in splits])
        for key, placed in every.items()
    }


def merge(rows: dict[tuple[Any, ...], Counts], key: tuple[Any, ...], counts: Counts) -> None:
    """Add counts to those of an equal row."""
    known = rows.get(key)
    rows[key] = (
        counts
        if known is None
        else [[a + b for a, b in zip(mine, theirs, strict=True)] for mine, theirs in zip(known, counts, strict=True)]
    )
