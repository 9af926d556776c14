"""What ranks send each other in a training step's forward, op by op: read off where weights are cut, as ``archc train`` runs it.

Backward mirrors each: where parts of a sum were added up, the gradient stands on every rank, and where a value stood on every
rank, parts of its gradient are added up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from archc.estimation.placed import Placed, place
from archc.graph.graph import Graph, join, resolve_dtype
from archc.ir.size import evaluate, product
from archc.ir.values import Call, Node, Value
from archc.ops.shared_attention import SharedAttention
from archc.planning.partial_sums import added_with_others, gives_parts
from archc.planning.rank_ops import GatherPieces, SumParts
from archc.planning.sharding import Sharding
from archc.planning.stage_values import values_between
from archc.planning.stages import StageItems, split_into_stages
from archc.planning.timing.communication import chosen_experts
from archc.planning.timing.forms import CUT_AXES
from archc.planning.timing.stepping import made_outputs, stage_graph
from archc.planning.timing.work import Pieces, pieces_of
from archc.units import tensor_bytes

Kind = Literal["all_reduce", "all_to_all", "all_gather", "loss", "send"]


@dataclass(slots=True)
class Collective:
    """One exchange. ``what`` is what is sent, in symbolic sizes; ``token_bytes`` its bytes for one token before it is cut.

    ``layer`` is the label of the layers that have it, empty outside of them, ``layers`` how many of all stages, ``leaf`` the op's
    name there. ``ranks`` take part in it.
    """

    kind: Kind
    by: str
    ranks: int
    layer: str
    leaf: str
    what: str
    token_bytes: int
    layers: int = 1

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


_LAYER_PREFIX = re.compile(r"^(?:.+\.)?layers\.\d+\.?")

_Sent = tuple[Kind, str, int, str, int]
"""(kind, by, ranks, what, bytes of a token)."""


def collectives(graph: Graph, sharding: Sharding, dtype: str, ranked: Graph | None = None) -> list[Collective]:
    """All exchanges of one pass, those of layers that are alike once.

    ``ranked`` is what one rank of tp runs (``archc.planning.flow``); without it sums are where weights are cut along what is
    summed over.

    * ``all_reduce`` over tp: behind a product that sums over what is cut each rank has a part of the sum.
    * ``all_gather`` over tp: an op can't work on a piece of what it reads.
    * ``all_to_all`` over ep: tokens go to the ranks of their experts and come back.
    * ``all_gather`` over cp: the keys and values of all tokens, once a layer.
    * ``loss`` over tp: of logits that are cut along the vocabulary three numbers a token: the largest, the sum, the target's.
    * ``send`` over pp: what a stage hands to the next.
    """
    found: dict[tuple[str, str, str, str], Collective] = {}
    if ranked is not None:
        for one in _between_pieces(ranked, sharding.parallel.tp, dtype):
            known = found.setdefault((one.kind, one.layer, one.leaf, one.what), one)
            if known is not one:
                known.layers += one.layers
    staged = split_into_stages(graph, len(sharding.stages)).stages
    for stage, items in zip(sharding.stages, staged, strict=True):
        pieces = pieces_of(stage, sharding.parallel)
        later = added_with_others((*items.before, *items.layers, *items.behind), pieces)
        ends = set(made_outputs(graph.outputs.values(), items))
        for placed in place(stage_graph(graph, items)).nodes:
            node = placed.node
            is_known = ranked is not None or node in later
            for kind, by, ranks, what, token_bytes in _sent(node, pieces, ends, dtype, is_summed_elsewhere=is_known):
                leaf = _leaf(placed)
                one = Collective(kind, by, ranks, placed.layer, leaf, what, token_bytes, placed.count)
                known = found.setdefault((kind, placed.layer, leaf, what), one)
                if known is not one and placed.layer:
                    known.layers += placed.count
    return [*found.values(), *_sends(graph, staged, dtype)]


def _between_pieces(ranked: Graph, tp: int, dtype: str) -> Iterator[Collective]:
    """What ranks of tp exchange, where their graph says so."""
    for placed in place(ranked).nodes:
        node = placed.node
        kind: Kind | None = (
            "all_reduce"
            if isinstance(node.op, SumParts)
            else "all_gather"
            if isinstance(node.op, GatherPieces)
            else None
        )
        if kind is not None:
            scope = _LAYER_PREFIX.sub("", placed.scope) if placed.layer else placed.scope
            leaf = join(scope, _maker(node.inputs[0]))
            whole = node.outputs[0]
            yield Collective(
                kind, "tp", tp, placed.layer, leaf, _shape(whole), _token_bytes(whole, dtype), placed.count
            )


def _maker(value: Value) -> str:
    """The ops that made a value, by name; those without one by what they were given."""
    item = next((item for item in value.home.items if value in item.outputs), None)
    if isinstance(item, Call):
        return join(item.name, _maker(item.body.outputs[item.outputs.index(value)]))
    if item is None or item.name:
        return "" if item is None else item.name
    return " + ".join(filter(None, dict.fromkeys(map(_maker, item.inputs)))) or item.op.op_name


def _leaf(placed: Placed) -> str:
    """The op's name in its layer, or of the model where it stands outside."""
    scope = _LAYER_PREFIX.sub("", placed.scope) if placed.layer else placed.scope
    return join(scope, placed.node.name) or placed.node.op.op_name


def _sent(node: Node, pieces: Pieces, ends: set[Value], dtype: str, *, is_summed_elsewhere: bool) -> Iterator[_Sent]:
    parallel, output = pieces.parallel, node.outputs[0]
    if pieces.is_shared_out(node) and parallel.ep > 1:
        chosen = max(chosen_experts(node, role) for role in node.params)
        what = f"each token to {chosen} expert{'s' if chosen > 1 else ''} and back"
        yield "all_to_all", "ep", parallel.ep, what, 2 * chosen * _token_bytes(node.inputs[0], dtype)
    if gives_parts(node, pieces) and not is_summed_elsewhere:
        yield "all_reduce", "tp", parallel.tp, _shape(output), _token_bytes(output, dtype)
    if output in ends and parallel.tp > 1 and output.axis in CUT_AXES:
        what = f"{_shape(output)} stay cut; of a token the largest, the sum and the target's"
        yield "loss", "tp", parallel.tp, what, 3 * tensor_bytes(1, "float32")
    if parallel.cp == 1:
        return
    rows = [state for state in node.states.values() if state.token_dim is not None]
    if rows:
        # A training pass has no cache, and the cache's dtype is none of its business.
        own = sum(tensor_bytes(evaluate(product(each.used), _TOKEN), dtype) for each in rows)
        names = " and ".join(state.name.rpartition(".")[2] for state in rows)
        yield "all_gather", "cp", parallel.cp, f"{names} of all tokens", own
    elif isinstance(node.op, SharedAttention):
        own = sum(_token_bytes(value, dtype) for value in node.inputs[1:3])
        yield "all_gather", "cp", parallel.cp, "key and value of all tokens, an earlier layer's", own


_TOKEN = {"batch": 1, "seq": 1, "past": 0, "source": 1, "memory": 1}


def _shape(value: Value) -> str:
    return f"({', '.join(str(dim) for dim in value.shape)})"


def _token_bytes(value: Value, dtype: str) -> int:
    return tensor_bytes(evaluate(product(value.shape), _TOKEN), resolve_dtype(value.dtype, dtype))


def _sends(graph: Graph, stages: list[StageItems], dtype: str) -> Iterator[Collective]:
    """What a stage hands to the next; what a later one reads goes through those between."""
    for index, values in enumerate(values_between(graph, stages)):
        own = sum(_token_bytes(value, dtype) for value in values)
        what = ", ".join(_shape(value) for value in values)
        yield Collective("send", "pp", 2, "", f"stage {index} to stage {index + 1}", what, own)
