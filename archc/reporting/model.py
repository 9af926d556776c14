"""One spec as a page needs it: facts as texts, and every quantity that a slider moves as a closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archc.drawing.layout import drawn
from archc.drawing.picture import picture
from archc.estimation.cache import DEFAULT_BLOCK_SIZE_TOKENS, LONG_CONTEXT
from archc.estimation.estimate import estimate
from archc.estimation.placed import Placement, place
from archc.expansion import expand
from archc.graph.graph import CAPACITY_MULTIPLE, Graph
from archc.ir.size import Dim, evaluate, product
from archc.ir.values import State
from archc.reporting.forms import Number, Pool, exact
from archc.reporting.ranks import cut_graph, ranks_of
from archc.reporting.steps import steps_of
from archc.spec.schema import Spec

STEPS = ("forward", "prefill", "decode", "train_step")
"""What FLOPs are given for, in the order of a table's columns."""


@dataclass(frozen=True, slots=True)
class Model:
    """A spec on a page: what is written there, and ``data``, from which the page's numbers are worked out.

    ``source`` says where the spec is from, ``command`` how a shell names it.
    """

    graph: Graph
    description: str
    source: str
    command: str
    facts: list[str]
    drawing: str
    parts: list[tuple[str, int]]
    data: dict[str, Any]

    @property
    def name(self) -> str:
        return self.graph.name


def model_of(spec: Spec, source: str, command: str) -> Model:
    """What a page says about a spec.

    Raises:
        GraphError: a kind builds something illegal.
    """
    graph = expand(spec)
    found = estimate(graph, batch_size=1, max_model_len=1)
    placement = place(graph)
    pool = Pool()
    counts = found.parameters
    data: dict[str, Any] = {
        "name": graph.name,
        "dtype": graph.dtype,
        "decodes": graph.mask != "bidirectional",
        "reads_encoder": graph.reads_encoder,
        "max_position_embeddings": graph.max_position_embeddings,
        "num_layers": graph.num_layers,
        "reserved_rows": graph.reserved_rows(),
        "capacity_multiple": CAPACITY_MULTIPLE,
        "default_block_size": DEFAULT_BLOCK_SIZE_TOKENS,
        "long_context": exact(LONG_CONTEXT),
        "parameters": {
            name: exact(getattr(counts, name))
            for name in ("total", "active", "embedding", "non_embedding", "untrainable", "mtp")
        },
        "parts": [[".".join(part), exact(count)] for part, count in counts.by_part.items()],
        "weights": _weights(placement),
        "mtp_weights": [] if graph.mtp is None else _weights(place(graph.mtp)),
        "flops": {name: pool.form(found.flops.formulas[name]) for name in found.flops.numbers},
        "flops_text": {name: str(found.flops.formulas[name]) for name in STEPS if name in found.flops.formulas},
        "cache_text": found.cache.formula,
    }
    flops = found.flops.formulas_by_layer()
    data["layers"] = [
        {
            "name": label,
            "layers": count,
            "parameters": exact(counts.by_layer.get(label, 0)),
            "active": exact(counts.active_by_layer.get(label, 0)),
            "flops": {step: pool.form(form) for step, form in flops.get(label, {}).items() if step in STEPS},
        }
        for label, count in found.layers.items()
    ]
    data["kinds"] = [
        {
            "name": kind.name,
            "part": ".".join(kind.part),
            "layers": kind.layers,
            "policy": kind.policy,
            "block_size": graph.policies.get(kind.name, ("", None))[1],
        }
        for kind in found.cache.by_kind
    ]
    data["states"] = _states(placement, [kind.part for kind in found.cache.by_kind], pool)
    by_cut = cut_graph(graph)
    data["ranks"] = ranks_of(graph, by_cut, pool)
    data["steps"] = steps_of(graph, by_cut, pool)
    data |= pool.to_json()
    shown = picture(spec)
    parts = [(".".join(part), count) for part, count in counts.by_part.items() if count]
    return Model(graph, spec.description or "", source, command, shown.facts, drawn(shown), parts, data)


def _weights(placement: Placement) -> list[list[Number | str]]:
    """[elements of a tensor, its dtype, how many there are] of the saved weights, equal ones together."""
    counts: dict[tuple[int, str], int] = {}
    seen: set[int] = set()
    for placed in placement.nodes:
        for param in placed.node.params.values():
            if id(param) not in seen:
                seen.add(id(param))
                key = (param.elements, param.dtype)
                counts[key] = counts.get(key, 0) + placed.count
    return [[exact(elements), dtype, count] for (elements, dtype), count in counts.items()]


def _states(placement: Placement, kinds: list[tuple[str, ...]], pool: Pool) -> list[dict[str, Any]]:
    """The states of every mixer and layer kind; ``counts`` has how often each distinct node with such a state runs."""
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    for placed in placement.nodes:
        for state in placed.node.states.values():
            row = _state(state, pool)
            row |= {"kind": kinds.index(placed.part[:2]), "layer": placed.layer}
            known = rows.setdefault(tuple(row.values()), row | {"counts": []})
            known["counts"].append(placed.count)
    return list(rows.values())


def _state(state: State, pool: Pool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "used": pool.form(product(state.used)),
        "allocated": pool.form(product(state.allocated)),
        "dtype": state.dtype,
        "role": state.role,
        "growth": state.growth,
        "rows": None,
        "row": None,
        "window": None,
    }
    if state.token_dim is not None:
        others: list[Dim] = [dim for place, dim in enumerate(state.used) if place != state.token_dim]
        row["rows"], row["row"] = pool.form(state.used[state.token_dim]), pool.form(product(others))
        if state.growth == "ring":
            row["window"] = evaluate(state.allocated[state.token_dim], {})
    return row


def default_length(models: list[Model]) -> int | None:
    """Tokens that every model has positions for: the fewest that one states."""
    stated = [model.data["max_position_embeddings"] for model in models]
    return min((length for length in stated if length), default=None)
