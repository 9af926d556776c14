"""What onnxruntime-genai can hold for a sequence: keys and values of one width, and one shape of recurrent state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from archc.errors import ArchcError
from archc.graph.graph import Graph, walk_scopes
from archc.ir.values import Node, State
from archc.ops.attention import Attention
from archc_exporters.onnx.limits import group_query_objection
from archc_exporters.onnx.states import ENCODER, onnx_state_names
from archc_exporters.onnx.target import Target

_CACHE = re.compile(r"^past_key_values\.(?P<layer>\d+)\.(?P<ending>[a-z_]+)$")
_PAIRS = {"key": "value", "value": "key", "conv_state": "recurrent_state", "recurrent_state": "conv_state"}
"""What a layer keeps, and what its runtime takes for granted beside it."""


def require_runnable(graph: Graph, target: Target) -> None:
    """Refuse what onnxruntime-genai would refuse, or run wrongly, before anything is written.

    Raises:
        ArchcError: everything that stands in the way, layers with one reason in one line.
    """
    found: dict[str, list[str]] = {}
    for where, reason in _objections(graph, target):
        found.setdefault(reason, []).append(where)
    if not found:
        return
    lines = [f"  {_places(places)}: {reason}" for reason, places in found.items()]
    raise ArchcError(
        "\n".join((f"{graph.name} can't be run by onnxruntime-genai:", *lines, "--io archc exports it for archc run"))
    )


def attention_nodes(graph: Graph) -> Iterator[tuple[str, Node, Attention]]:
    """(scope, node, op) of every softmax attention with keys and values of its own."""
    for scope, node in walk_scopes(graph.root, ""):
        if isinstance(node.op, Attention):
            yield scope, node, node.op


def _objections(graph: Graph, target: Target) -> Iterator[tuple[str, str]]:
    """(where, why) of everything that its runtime has no place for."""
    if "logits" not in graph.outputs:
        yield "head", f"gives {', '.join(graph.outputs)}, and generation needs logits"
    if graph.mask == "bidirectional":
        yield "stack", "sees all tokens at once, and its runtime generates"
        return
    if any(name.startswith(ENCODER) for name in graph.inputs):
        yield "decoder", "reads an encoder, and its runtime is given decoders alone"
        return
    for name in graph.inputs:
        if name not in ("input_ids", "positions"):
            what = "the length of a prefix" if name == "prefix_length" else "a second input of ids"
            yield name, f"is {what}, which its runtime does not feed"
    for scope, _, op in attention_nodes(graph):
        yield from ((scope, reason) for reason in _attention_objections(op, target))
    yield from _state_objections(graph)


def _attention_objections(op: Attention, target: Target) -> Iterator[str]:
    if op.key_dim != op.value_dim:
        yield f"keys of {op.key_dim} and values of {op.value_dim} differ in width; its runtime allocates both alike"
    if op.chunk is not None:
        yield f"attention in chunks of {op.chunk} has no form over the caches that it allocates"
    elif op.sink_tokens:
        yield f"{op.sink_tokens} first tokens beside a window have no place in the caches that it allocates"
    elif op.window is not None and (objection := group_query_objection(op, target)):
        yield f"a sliding window there needs GroupQueryAttention: {objection}"


def _state_objections(graph: Graph) -> Iterator[tuple[str, str]]:
    names = onnx_state_names(graph)
    layers: dict[str, set[str]] = {}
    shapes: dict[str, tuple[str, tuple[object, ...]]] = {}
    for state in graph.states():
        match = _CACHE.match(names[state])
        if match is None or match["ending"] not in _PAIRS:
            ending = names[state].rpartition(".")[2]
            yield (
                state.rpartition(".")[0],
                f"caches {ending}, and its runtime knows {', '.join(_PAIRS)}, one each a layer",
            )
            continue
        layers.setdefault(match["layer"], set()).add(match["ending"])
        if match["ending"].endswith("state"):
            yield from _shape_objection(shapes, match["ending"], state, graph.states()[state])
    for layer, endings in layers.items():
        for lone in sorted(ending for ending in endings if _PAIRS[ending] not in endings):
            yield f"layers.{layer}", f"caches {lone} without {_PAIRS[lone]}, which its runtime binds too"


def _shape_objection(
    shapes: dict[str, tuple[str, tuple[object, ...]]], ending: str, name: str, state: State
) -> Iterator[tuple[str, str]]:
    """Its runtime reads the shape of the first layer's state and allocates all of that kind alike."""
    shape = tuple(state.allocated[1:])
    first, expected = shapes.setdefault(ending, (name, shape))
    if shape != expected:
        yield (
            name.rpartition(".")[0],
            f"has a {ending} of {_text(shape)} where {first.rpartition('.')[0]} has {_text(expected)}; its runtime allocates "
            "all alike",
        )


def _text(shape: Iterable[object]) -> str:
    return " x ".join(map(str, shape))


def _places(places: list[str]) -> str:
    """Up to three of them by name."""
    unique = list(dict.fromkeys(places))
    return ", ".join(unique[:3]) + (f" and {len(unique) - 3} more" if len(unique) > 3 else "")
