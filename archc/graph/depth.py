"""The same architecture with fewer layers: every distinct one is still there, in order and under its name."""

from __future__ import annotations

from dataclasses import replace

from archc.graph.graph import LAYER, Graph
from archc.ir.values import Body, Call, Node, Value

_LEAST = 2
"""Layers of a stack that stay at least, so that one follows another."""


def shallow(graph: Graph) -> Graph:
    """The graph cut to the layers that show every body for the first time, and at least two of each stack.

    Layers that stay keep their names and so their weights and states; one that goes passes its first inputs through. The
    graph itself comes back where nothing can be left out. Extra prediction layers go.
    """
    gone = _superfluous(graph.root)
    if not gone:
        return graph
    passed: dict[Value, Value] = {}
    root = Body(graph.root.label, graph.root.part)
    root.inputs = list(graph.root.inputs)
    for item in graph.root.items:
        inputs = tuple(passed.get(value, value) for value in item.inputs)
        if item in gone:
            passed |= dict(zip(item.outputs, inputs, strict=False))
        elif isinstance(item, Call):
            root.items.append(Call(item.name, item.body, inputs, item.outputs))
        else:
            root.items.append(Node(item.op, item.name, inputs, item.outputs, item.params, item.states))
    root.outputs = [passed.get(value, value) for value in graph.root.outputs]
    outputs = {name: passed.get(value, value) for name, value in graph.outputs.items()}
    return replace(graph, root=root, outputs=outputs, num_layers=graph.num_layers - len(gone), mtp=None)


def _superfluous(root: Body) -> set[Node | Call]:
    gone: set[Node | Call] = set()
    kept: dict[str | None, list[Body]] = {}
    for call in root.calls():
        match = LAYER.match(call.name)
        if match is None:
            continue
        bodies = kept.setdefault(match["stack"], [])
        if _is_residual(call) and len(bodies) >= _LEAST and call.body in bodies:
            gone.add(call)
        else:
            bodies.append(call.body)
    return gone


def _is_residual(call: Call) -> bool:
    """Whether the layer's outputs, one or several streams, can be replaced by its first inputs."""
    streams = call.inputs[: len(call.outputs)]
    return [value.type.key() for value in call.outputs] == [value.type.key() for value in streams]
