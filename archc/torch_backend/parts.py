"""A model's forward in two parts, and a piece of any generated forward.

Losses take logits a chunk at a time, and stages run some layers. A part runs the model's own submodules under their own
names; it is cut from the ``fx.Graph`` that the forward was printed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from archc.graph.graph import LAYER
from archc.torch_backend.lower import place
from archc.torch_backend.scopes import ScopeModule, scope_class, source_of
from archc.torch_backend.step import last_tokens


@dataclass(frozen=True, eq=False)
class Parts:
    """``trunk(**inputs)`` gives what the head reads of the last layer and of what comes before it, ``tail(*streams)`` the output.

    Streams are (batch, seq, …). ``tail`` is a module that holds the model's own head under its own names.
    """

    trunk: Callable[..., tuple[Tensor, ...]]
    tail: nn.Module


def parts_of(model: ScopeModule) -> Parts:
    """Trunk and tail of a model that ``archc.build`` made: up to its last layer's output, and the rest, token by token."""
    graph = type(model).graph
    layers = [node for node in graph.nodes if is_layer(node)]
    order = {node: place for place, node in enumerate(graph.nodes)}
    end = order[layers[-1]] if layers else -1
    taken = [node for node in graph.nodes if node.target is last_tokens and node.op == "call_function"]
    # Values of several outputs are taken apart by nodes that still belong to the layer.
    while end + 1 < len(order) and _takes_apart(list(graph.nodes)[end + 1], layers):
        end += 1
    behind = [node for node in graph.nodes if order[node] > end and node.op not in ("placeholder", "output")]
    wanted: dict[fx.Node, None] = {}
    for node in (*behind, output_of(graph)):
        if node in taken:
            wanted[_node(node.args[0])] = None
            continue
        for value in node.all_input_nodes:
            if order[value] <= end or value.op == "placeholder":
                wanted[value] = None
    streams = list(wanted)
    trunk = cut(graph, [], streams)
    tail = cut(graph, streams, results_of(graph), left_out=taken)
    return Parts(piece(model, "Trunk", trunk), module_of(model, "Tail", tail))


def is_layer(node: fx.Node) -> bool:
    """Whether an fx node runs a layer of a stack."""
    return node.op == "call_module" and LAYER.search(str(node.target)) is not None


def output_of(graph: fx.Graph) -> fx.Node:
    """The node that returns."""
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def results_of(graph: fx.Graph) -> list[fx.Node]:
    """What a graph returns."""
    return list(output_of(graph).all_input_nodes)


def cut(
    graph: fx.Graph, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], *, left_out: Iterable[fx.Node] = ()
) -> fx.Graph:
    """What makes ``outputs`` of ``inputs``, as a graph of its own.

    Arguments are the inputs, then those of ``graph`` that it reads. It returns a tuple. Nodes that are ``left_out`` give what
    their first argument is.
    """
    skipped = set(left_out)
    needed: set[fx.Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            if node not in inputs:
                waiting += [_node(node.args[0])] if node in skipped else node.all_input_nodes
    made = fx.Graph()
    env: dict[fx.Node, fx.Node] = {node: made.placeholder(node.name) for node in inputs}
    for node in graph.nodes:
        if node in needed and node not in env:
            env[node] = env[_node(node.args[0])] if node in skipped else made.node_copy(node, lambda old: env[old])
    made.output(tuple(env[node] for node in outputs))
    return made


def piece(model: nn.Module, name: str, graph: fx.Graph) -> Callable[..., tuple[Tensor, ...]]:
    """A function that runs a piece of a model's graph with the model's submodules."""
    forward: Any = scope_class(name, *source_of(graph), graph).forward

    def run(*args: Any, **keywords: Any) -> tuple[Tensor, ...]:
        return forward(model, *args, **keywords)

    return run


def module_of(model: nn.Module, name: str, graph: fx.Graph) -> nn.Module:
    """A module that runs a piece of a model's graph and holds the submodules that the piece calls, which stay the model's too."""
    cls = scope_class(name, *source_of(graph), graph)
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            place(module, str(node.target), model.get_submodule(str(node.target)))
    return module


def _takes_apart(node: fx.Node, layers: list[fx.Node]) -> bool:
    return (
        node.op == "call_function"
        and bool(layers)
        and node.all_input_nodes == [layers[-1]]
        and node.target is not last_tokens
    )


def _node(value: Any) -> fx.Node:
    assert isinstance(value, fx.Node)
    return value
