"""A graph checks itself: what a backend relies on holds, or the error says where it does not."""

from __future__ import annotations

from collections.abc import Iterable

from archc.errors import GraphError
from archc.graph.graph import Graph
from archc.ir.values import Body, Node, Param, State, Value


def verify(graph: Graph) -> None:
    """Check a graph, its extra prediction layers included.

    Every value is made before it is used and in the body that uses it; calls fit their bodies; types, weights and states
    agree with what the ops say; names are unique; each state has one writer; a weight used twice is the same weight.

    Raises:
        GraphError: the first promise that is broken.
    """
    for body in graph.bodies():
        _verify_body(body)
    _verify_names(graph)
    for name, value in graph.outputs.items():
        if value not in graph.root.outputs:
            raise GraphError(f"{graph.name}: output {name} does not leave the root")
    if graph.mtp is not None:
        verify(graph.mtp)


def _verify_body(body: Body) -> None:
    known = set(body.inputs)
    siblings: set[str] = set()
    for item in body.items:
        if not known.issuperset(item.inputs):
            raise _unknown(f"{body.label}: {item}", item.inputs, known)
        if isinstance(item, Node):
            _verify_node(body, item)
        else:
            for given, inner in ((item.inputs, item.body.inputs), (item.outputs, item.body.outputs)):
                if [value.type.key() for value in given] != [value.type.key() for value in inner]:
                    raise GraphError(f"{body.label}: {item}: values don't fit the body {item.body.label}")
        if item.name:
            if item.name in siblings:
                raise GraphError(f"{body.label}: {item}: the name is used twice")
            siblings.add(item.name)
        known.update(item.outputs)
    if not known.issuperset(body.outputs):
        raise _unknown(f"{body.label}: outputs", body.outputs, known)


def _verify_node(body: Body, node: Node) -> None:
    types = [value.type for value in node.inputs]
    inferred = [kind.key() for kind in node.op.infer(types)]
    if inferred != [value.type.key() for value in node.outputs]:
        shown = f"outputs are {[v.type for v in node.outputs]}, the op says {inferred}"
        raise GraphError(f"{body.label}: {node}: {shown}")
    declared: dict[str, Param | State] = {**node.op.params(types), **node.op.states(types)}
    held: dict[str, Param | State] = {**node.params, **node.states}
    for role, want in declared.items():
        found = held.get(role)
        if found is None or _written(found) != _written(want, f"{node.name}."):
            raise GraphError(f"{body.label}: {node}: {role} is {found}, the op says {want}")


def _written(owned: Param | State, prefix: str = "") -> list[object]:
    """Every attribute of a weight or a state, its name completed."""
    return [prefix + owned.name, *(getattr(owned, slot) for slot in owned.__slots__ if slot != "name")]


def _unknown(where: str, values: Iterable[Value], known: set[Value]) -> GraphError:
    """The error for the first of the values that is not known."""
    value = next(value for value in values if value not in known)
    return GraphError(f"{where}: {value} is used before it is made, or belongs to another body")


def _verify_names(graph: Graph) -> None:
    owners: dict[str, Param] = {}
    for name, param in _named(graph.root, {}):
        if owners.setdefault(name, param) is not param:
            raise GraphError(f"{graph.name}: two weights are called {name}")
    states = [name for name, _ in graph.root.states()]
    if len(set(states)) != len(states):
        doubled = {name for name in states if states.count(name) > 1}
        raise GraphError(f"{graph.name}: states written twice: {', '.join(sorted(doubled))}")


def _named(body: Body, known: dict[Body, list[tuple[str, Param]]]) -> list[tuple[str, Param]]:
    """(name below this body, weight) of everything in it; a body that many layers share is read once."""
    found = known.get(body)
    if found is None:
        found = known[body] = []
        for item in body.items:
            if isinstance(item, Node):
                found += [(param.name, param) for param in item.params.values()]
            else:
                found += [(f"{item.name}.{name}", param) for name, param in _named(item.body, known)]
    return found
