"""Every distinct node of a graph once, with how often it runs, the part of the model it belongs to, and its layer kind."""

from __future__ import annotations

from dataclasses import dataclass

from archc.graph.graph import LAYER, Graph, join
from archc.ir.values import Body, Call, Node

Part = tuple[str, ...]
"""Where a cost belongs: ``("embedding",)``, ``("mixer", "kda")``, ``("ffn", "moe", "router")``."""


@dataclass(slots=True, eq=False, repr=False)
class Placed:
    """One distinct node: it runs ``count`` times, in the layers called ``layer`` (empty outside the layers).

    ``scope`` is the path of the scope that holds it, in the first layer of its kind.
    """

    node: Node
    count: int
    part: Part
    layer: str
    is_readout: bool
    """Comes after the last layer of a stack that goes on, so a prefill needs it for one token only."""
    scope: str


@dataclass(slots=True, eq=False, repr=False)
class Placement:
    """A graph as a list of distinct nodes. ``layers`` counts layer kinds, ``keeping`` layers that keep something, by part."""

    nodes: list[Placed]
    layers: dict[str, int]
    keeping: dict[Part, int]


def place(graph: Graph) -> Placement:
    """The distinct nodes of a graph; layers that share a body are visited once, so 10,000 layers cost as much as one."""
    found = Placement([], {}, {})
    bodies: dict[Body, int] = {}
    for call in graph.root.calls():
        if LAYER.match(call.name):
            bodies[call.body] = bodies.get(call.body, 0) + 1
            found.layers[call.body.label] = found.layers.get(call.body.label, 0) + 1
    layers_left = sum(bodies.values())
    has_layers = layers_left > 0
    seen: set[Body] = set()
    for item in graph.root.items:
        is_behind = has_layers and layers_left == 0
        is_readout = is_behind and graph.mask != "bidirectional"
        outer = ("head",) if is_behind else ("embedding",)
        if isinstance(item, Node):
            found.nodes.append(Placed(item, 1, _node_part(item, outer), "", is_readout, ""))
        elif LAYER.match(item.name):
            layers_left -= 1
            if item.body not in seen:
                seen.add(item.body)
                _visit_layer(found, item.body, bodies[item.body], item.name)
        else:
            _visit(found, item.body, 1, outer, "", item.name, is_readout=is_readout)
    return found


def _node_part(node: Node, outer: Part) -> Part:
    return ("norm",) if node.op.op_name.endswith("_norm") else outer


def _visit_layer(found: Placement, body: Body, count: int, scope: str) -> None:
    """Norms around the branches are norms, mixers and ffns go by their names, and the rest is the block's own."""
    keeping: set[Part] = set()
    for item in body.items:
        if isinstance(item, Node):
            found.nodes.append(Placed(item, count, _node_part(item, ("block",)), body.label, False, scope))
        else:
            part = (item.body.part, item.body.label) if item.body.part else ("block", item.name)
            if item.body.states():
                keeping.add(part)
            _visit(found, item.body, count, part, body.label, join(scope, item.name), is_readout=False)
    for part in keeping:
        found.keeping[part] = found.keeping.get(part, 0) + count


def _visit(found: Placement, body: Body, count: int, part: Part, layer: str, scope: str, *, is_readout: bool) -> None:
    """A body's nodes under one part, or split by the names of its scopes and ops when it mixes several branches."""
    is_split = len(part) == 2 and _has_branches(body)
    for item in body.items:
        inner = (*part, item.name) if is_split and item.name else part
        if isinstance(item, Call):
            _visit(found, item.body, count, inner, layer, join(scope, item.name), is_readout=is_readout)
        else:
            found.nodes.append(Placed(item, count, inner, layer, is_readout, scope))


def _has_branches(body: Body) -> bool:
    """Whether a body has scopes of its own, or weights that a token uses only in part (routed experts)."""
    for item in body.items:
        if isinstance(item, Call):
            return True
        if any(item.op.active_elements(role, param) != param.elements for role, param in item.params.items()):
            return True
    return False
