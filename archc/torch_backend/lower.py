"""A graph becomes a module tree: a generated class a distinct body, real modules under the scopes' names."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

from torch import fx, nn

from archc import registry
from archc.graph.graph import Graph
from archc.ir.values import Body, Call, Node, Param, State, Value
from archc.ops.linear import Linear
from archc.torch_backend.context import Context, Function
from archc.torch_backend.scopes import ScopeModule, scope_class, source_of
from archc.torch_backend.step import last_tokens, or_zeros, step_positions


def lower(graph: Graph, context: Context) -> ScopeModule:
    """The module of a graph: weights allocated on the context's device and not initialised."""
    return _Lowering(graph, context).root()


def state_of(cache: dict[str, Any] | None, name: str) -> Any:
    """One state's tensor of a flat cache, or None without a cache."""
    return None if cache is None else cache[name]


_known: dict[Hashable, type[ScopeModule]] = {}
"""Classes of bodies that were lowered before, so that a second build of a model prints no source again."""


class _Lowering:
    """Classes are made once a body, instances once a scope."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph, self.context = graph, context
        self.classes: dict[Body, type[ScopeModule]] = {}
        self.states: dict[Body, list[tuple[str, State]]] = {}
        self.signatures: dict[Body, Hashable] = {}
        self.tied = {param for _, node in graph.walk() if _is_tied(node) for param in node.params.values()}
        self.owners: dict[Param, tuple[nn.Module, str]] = {}
        self.shared: list[tuple[nn.Module, Param]] = []

    def root(self) -> ScopeModule:
        module = self._instance(self.graph.root, "Model", is_root=True)
        for leaf, param in self.shared:
            owner, name = self.owners[param]
            leaf.weight = getattr(owner, name)
        return module

    def _states(self, body: Body) -> list[tuple[str, State]]:
        if body not in self.states:
            self.states[body] = body.states()
        return self.states[body]

    def _instance(self, body: Body, name: str, *, is_root: bool = False) -> ScopeModule:
        leaves = {item: self._leaf(item) for item in body.items if isinstance(item, Node)}
        cls = self.classes.get(body)
        if cls is None:
            key = (name, is_root, self.context, self._signature(body))
            cls = _known.get(key)
            if cls is None:
                cls = _known[key] = self._class(body, leaves, name, is_root)
            self.classes[body] = cls
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        for item in body.items:
            if isinstance(item, Call):
                _place(module, item.name, self._instance(item.body, _class_name(item)))
            else:
                leaf = leaves[item]
                if isinstance(leaf, nn.Module):
                    _place(module, item.name, leaf)
        return module

    def _signature(self, body: Body) -> Hashable:
        """All that the source of a body depends on: ops, names, and how values flow."""
        if body not in self.signatures:
            numbers = {value: i for i, value in enumerate(body.inputs)}
            items: list[Hashable] = []
            for item in body.items:
                ins = tuple(numbers[value] for value in item.inputs)
                for value in item.outputs:
                    numbers[value] = len(numbers)
                inner = item.op if isinstance(item, Node) else self._signature(item.body)
                items.append((item.name, inner, ins))
            self.signatures[body] = (tuple(items), tuple(numbers[value] for value in body.outputs))
        return self.signatures[body]

    def _leaf(self, node: Node) -> nn.Module | Function:
        leaf = registry.load("torch", node.op.op_name)(node, self.context)
        if isinstance(leaf, nn.Module) and self.tied:
            for role, param in node.params.items():
                if param in self.tied and _is_tied(node) and role == "weight":
                    self.shared.append((leaf, param))
                elif param in self.tied:
                    *parents, last = param.name.removeprefix(f"{node.name}.").split(".")
                    self.owners[param] = (leaf.get_submodule(".".join(parents)), last)
        return leaf

    def _class(
        self, body: Body, leaves: dict[Node, nn.Module | Function], name: str, is_root: bool
    ) -> type[ScopeModule]:
        graph = fx.Graph()
        env: dict[Value, fx.Node] = {}
        step: fx.Node | None = None
        cells: dict[str, fx.Node] = {}
        states = self._states(body)
        tail: set[Value] = set()
        last_only: fx.Node | None = None
        if is_root:
            ids = graph.placeholder("input_ids")
            step = graph.placeholder("step", default_value=None)
            cache = graph.placeholder("cache", default_value=None)
            last_only = graph.placeholder("last_only", default_value=False)
            env[self.graph.inputs["input_ids"]] = ids
            if _uses(body, self.graph.inputs["positions"]):
                env[self.graph.inputs["positions"]] = _function(graph, "positions", step_positions, (step, ids))
            for key, value in self.graph.inputs.items():
                if key not in ("input_ids", "positions"):
                    given = graph.placeholder(key, default_value=None)
                    env[value] = _function(graph, f"{key}_or_zeros", or_zeros, (given, ids))
            cells = {path: _function(graph, _short(path), state_of, (cache, path)) for path, _ in states}
            layers = [item for item in body.items if isinstance(item, Call) and item.name.startswith("layers.")]
            tail = set(layers[-1].outputs) if layers else set()
        else:
            for i, value in enumerate(body.inputs):
                env[value] = graph.placeholder("x" if i == 0 else f"x{i}")
            if states:
                step = graph.placeholder("step", default_value=None)
                endings: dict[str, int] = {}
                for path, state in states:
                    ending = state.name.rpartition(".")[2]
                    endings[ending] = endings.get(ending, 0) + 1
                    suffix = "" if endings[ending] == 1 else f"_{endings[ending]}"
                    cells[path] = graph.placeholder(f"{ending}{suffix}", default_value=None)
        for item in body.items:
            args: list[Any] = [env[value] for value in item.inputs]
            if isinstance(item, Call):
                inner = self._states(item.body)
                if inner:
                    args += [step, *(cells[f"{item.name}.{path}"] for path, _ in inner)]
                result = graph.call_module(item.name, tuple(args))
            else:
                leaf = leaves[item]
                if isinstance(leaf, Function):
                    result = _function(graph, item.op.op_name, leaf.target, tuple(args), leaf.keywords)
                else:
                    if item.states:
                        args += [step, *(cells[state.name] for state in item.states.values())]
                    result = graph.call_module(item.name, tuple(args))
            if len(item.outputs) == 1:
                env[item.outputs[0]] = result
            else:
                for i, value in enumerate(item.outputs):
                    env[value] = _function(graph, f"{result.name}_{i}", operator.getitem, (result, i))
            for value in tail.intersection(item.outputs):
                # The final norm and the head need no more tokens than the caller does.
                env[value] = _function(graph, "last", last_tokens, (env[value], step, last_only))
        results = [env[value] for value in body.outputs]
        graph.output(results[0] if len(results) == 1 else tuple(results))
        code, imports = source_of(graph)
        return scope_class(name, code, imports, graph)


def _function(
    graph: fx.Graph, name: str, target: Any, args: tuple[Any, ...], keywords: dict[str, Any] | None = None
) -> fx.Node:
    """A call under a readable name, which fx makes unique."""
    return graph.create_node("call_function", target, args, keywords or {}, name=name)


def _short(path: str) -> str:
    """``layers.3.mixer.attention.key`` -> ``layer_3_key``."""
    parts = path.split(".")
    return f"layer_{parts[1]}_{parts[-1]}" if parts[0] == "layers" else parts[-1]


def _is_tied(node: Node) -> bool:
    return isinstance(node.op, Linear) and node.op.tied


def _uses(body: Body, value: Value) -> bool:
    return any(value in item.inputs for item in body.items)


def _class_name(call: Call) -> str:
    """``DecoderLayer`` for layers, the scope's name in capitals elsewhere."""
    if call.name.startswith("layers."):
        return "Layer"
    return "".join(part.title() for part in call.name.replace(".", "_").split("_"))


def _place(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module under a dotted name; numbers become elements of a ModuleList."""
    *parents, last = path.split(".")
    home: nn.Module = root
    for parent in parents:
        if parent not in home._modules:
            home.add_module(parent, nn.ModuleList())
        home = home.get_submodule(parent)
    home.add_module(last, module)
