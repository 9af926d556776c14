"""What an op does, symbolic: FLOPs and the elements that it moves, as closed forms in batch, seq, past, source and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archc.estimation.complexity_costs import moved_values
from archc.estimation.placed import Placed, place
from archc.graph.graph import Graph
from archc.ir.op import Form, Pairs
from archc.ir.size import Dim, product
from archc.ir.values import Node, Param, State

CUT_AXES = ("heads", "kv_heads", "ffn", "vocab")
"""Axes along which tensor parallelism cuts a value."""


@dataclass(frozen=True, slots=True)
class ValueForm:
    """An input or output: its elements, its dtype (``model`` follows the model's), whether it lies along a cut axis.

    ``is_cache``: rows of another layer's cache, which are cut by heads and follow the cache's dtype.
    """

    elements: Dim
    dtype: str
    is_cut: bool
    is_cache: bool


@dataclass(frozen=True, slots=True)
class WeightForm:
    """A weight; ``chosen`` is the share that one token uses, below 1 for routed experts."""

    role: str
    param: Param
    chosen: float


@dataclass(frozen=True, slots=True)
class StateForm:
    """A state: elements that a prefill writes and that a decode step reads; ``passes`` 2 where the step writes it back, too."""

    role: str
    state: State
    written: Dim
    read: Dim
    passes: int


@dataclass(frozen=True, slots=True)
class OpForms:
    """One op. ``rows`` are its tokens, by which experts are chosen."""

    node: Node
    flops: dict[Form, Dim]
    rows: Dim
    values: tuple[ValueForm, ...]
    weights: tuple[WeightForm, ...]
    states: tuple[StateForm, ...]


def op_forms(node: Node, pairs: Pairs = "needed") -> OpForms:
    """The closed forms of an op. One without counted FLOPs is fused into its neighbours and moves nothing but its states."""
    types = [value.type for value in node.inputs]
    forms: tuple[Form, ...] = ("many", "few")
    flops: dict[Form, Dim] = {form: node.op.flops(types, form, pairs) for form in forms}
    is_counted = any(form != 0 for form in flops.values())
    return OpForms(
        node,
        flops,
        product(node.inputs[0].shape[:-1]) if node.inputs else 0,
        tuple(
            ValueForm(product(value.shape), dtype, is_cache or value.axis in CUT_AXES, is_cache)
            for value, dtype, is_cache in (moved_values(node) if is_counted else ())
        ),
        tuple(
            WeightForm(role, param, node.op.active_elements(role, param) / param.elements)
            for role, param in (node.params.items() if is_counted else ())
        ),
        tuple(
            StateForm(
                role,
                state,
                product(state.used),
                node.op.read_elements(role, state),
                2 if state.growth == "fixed" else 1,
            )
            for role, state in node.states.items()
        ),
    )


def model_forms(graph: Graph, pairs: Pairs = "needed") -> Iterator[tuple[Placed, OpForms]]:
    """Each distinct op of a graph with where it stands and how often it runs."""
    for placed in place(graph).nodes:
        yield placed, op_forms(placed.node, pairs)
