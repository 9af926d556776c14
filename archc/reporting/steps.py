"""What every op does in a prefill and in a decode step, as closed forms, so that a page can put them under a roof."""

from __future__ import annotations

from typing import Any

from archc.estimation.placed import place
from archc.graph.graph import Graph
from archc.ir.size import product
from archc.ir.values import Node, Value
from archc.planning.partial_sums import added_with_others, gives_parts
from archc.planning.sharding import Sharding
from archc.planning.stages import split_into_stages
from archc.planning.timing.communication import chosen_experts
from archc.planning.timing.flop_conventions import sequence_rows
from archc.planning.timing.forms import CUT_AXES, OpForms, op_forms
from archc.planning.timing.stepping import OUTSIDE, made_outputs, stage_graph
from archc.planning.timing.work import Pieces, pieces_of
from archc.reporting.forms import Pool, exact
from archc.reporting.ranks import PP, Counts, merge


def steps_of(graph: Graph, by_cut: list[Sharding], pool: Pool) -> dict[str, Any]:
    """``ops``: what an op does under each of ``CUTS``, and how often on each stage of each of ``PP``; equal ones together.

    ``tokens`` are the rows of the last layer, ``handed_on`` what a stage hands to the next: for each of ``PP``, for each stage
    but the last, [elements, dtype] of its values.
    """
    splits = [split_into_stages(graph, pp).stages for pp in PP]
    counts: dict[tuple[int, str, bool], Counts] = {}
    nodes: dict[tuple[int, str, bool], tuple[Node, bool]] = {}
    for split, stages in enumerate(splits):
        for index, items in enumerate(stages):
            outputs = set(made_outputs(graph.outputs.values(), items))
            for placed in place(stage_graph(graph, items)).nodes:
                key = (id(placed.node), placed.layer, placed.is_readout)
                nodes[key] = placed.node, any(value in outputs for value in placed.node.outputs)
                empty = [[0] * len(stages) for stages in splits]
                counts.setdefault(key, empty)[split][index] += placed.count
    pieces = [pieces_of(sharding.stages[0], sharding.parallel) for sharding in by_cut]
    later = [added_with_others(graph.root.items, each) for each in pieces]
    forms: dict[int, OpForms] = {}
    rows: dict[tuple[Any, ...], Counts] = {}
    for (number, layer, is_last), (node, is_output) in nodes.items():
        known = forms.get(number)
        if known is None:
            known = forms[number] = op_forms(node)
        row = _op(known, pieces, later, pool, is_output=is_output)
        if row is not None:
            merge(rows, (layer or OUTSIDE, is_last, *row), counts[number, layer, is_last])
    names = ("layer", "last", "many", "few", "rows", "ways", "shared", "values", "weights", "states", "sends")
    return {
        "ops": [dict(zip(names, key, strict=True)) | {"counts": found} for key, found in rows.items()],
        "tokens": pool.form(product(sequence_rows(graph))),
        "handed_on": [
            [[_value(value, pool) for value in items.layers[-1].outputs] for items in stages[:-1]] for stages in splits
        ],
    }


def _op(
    forms: OpForms, pieces: list[Pieces], later: list[set[Node]], pool: Pool, *, is_output: bool
) -> tuple[Any, ...] | None:
    node = forms.node
    sends = _sends(node, pieces, later, pool, is_output=is_output)
    is_counted = any(form != 0 for form in forms.flops.values())
    if not is_counted and not forms.states and not sends:
        return None
    shared = tuple(each.is_shared_out(node) for each in pieces)
    ways = tuple(each.parallel.tp if out else each.tp_ways(node) for each, out in zip(pieces, shared, strict=True))
    weights = tuple(
        (tuple(exact(each.params[id(one.param)].elements) for each in pieces), one.param.dtype, one.chosen)
        for one in forms.weights
    )
    states = tuple(
        (
            pool.form(one.written),
            pool.form(one.read),
            tuple(pool.form(product(each.states[node, one.role].local.used)) for each in pieces),
            one.state.dtype,
            one.state.role,
            one.passes,
        )
        for one in forms.states
    )
    values = tuple((pool.form(value.elements), value.dtype, value.is_cut) for value in forms.values)
    many, few = pool.form(forms.flops["many"]), pool.form(forms.flops["few"])
    return many, few, pool.form(forms.rows), ways, shared, values, weights, states, sends


def _sends(
    node: Node, pieces: list[Pieces], later: list[set[Node]], pool: Pool, *, is_output: bool
) -> tuple[tuple[Any, ...], ...]:
    """(kind of collective, elements, dtype, times, whether it is there for each of ``CUTS``)."""
    is_cut = node.outputs[0].axis in CUT_AXES
    found: list[tuple[Any, ...]] = []
    if not is_cut:
        partial = tuple(
            gives_parts(node, each) and node not in waiting for each, waiting in zip(pieces, later, strict=True)
        )
        if any(partial):
            found.append(("all_reduce", *_value(node.outputs[0], pool), 1, partial))
    elif is_output:
        elements, _ = _value(node.outputs[0], pool)
        found.append(("all_gather", elements, "float32", 1, tuple(each.parallel.tp > 1 for each in pieces)))
    shared = tuple(each.is_shared_out(node) and each.parallel.ep > 1 for each in pieces)
    if any(shared):
        chosen = max(chosen_experts(node, role) for role in node.params)
        found.append(("all_to_all", *_value(node.inputs[0], pool), chosen, shared))
    return tuple(found)


def _value(value: Value, pool: Pool) -> tuple[int, str]:
    return pool.form(product(value.shape)), value.dtype
