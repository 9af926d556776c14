"""A graph becomes a module tree: a generated class a distinct body, real modules under the scopes' names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any

from torch import fx, nn

from archc import registry
from archc.graph.graph import LAYER, Graph
from archc.ir.op import Op
from archc.ir.size import SEQ, SOURCE
from archc.ir.values import Body, Call, Node, Param, State, Value
from archc.ops.linear import Embedding, Linear
from archc.torch_backend.context import Context, Function
from archc.torch_backend.left_out import left_out
from archc.torch_backend.scopes import ScopeModule, scope_class, source_of
from archc.torch_backend.step import last_tokens, or_zeros, part_or_none, token_positions, when_given


def lower(graph: Graph, context: Context) -> ScopeModule:
    """The module of a graph: weights allocated on the context's device and not initialised."""
    return Lowering(graph, context).root()


def state_of(cache: dict[str, Any] | None, name: str) -> Any:
    """One state's tensor of a flat cache, or None without a cache."""
    return None if cache is None else cache[name]


_known: dict[Hashable, type[ScopeModule]] = {}
"""Classes of bodies that were lowered before, so that a second build of a model prints no source again."""


class Lowering:
    """Classes are made once a body, instances once a scope."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph, self.context = graph, context
        self.classes: dict[Body, type[ScopeModule]] = {}
        self.states: dict[Body, list[tuple[str, State]]] = {}
        self.signatures: dict[Body, Hashable] = {}
        self.steps: dict[Body, bool] = {}
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
            inputs = (self.graph.mask, *self.graph.inputs) if is_root else ()
            key = (name, inputs, self.context, self._signature(body))
            cls = _known.get(key)
            if cls is None:
                cls = _known[key] = self._class(body, leaves, name, is_root)
            self.classes[body] = cls
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        for item in body.items:
            if isinstance(item, Call):
                place(module, item.name, self._instance(item.body, _class_name(item)))
            else:
                leaf = leaves[item]
                if isinstance(leaf, nn.Module):
                    place(module, item.name, leaf)
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
                items.append((item.name, inner, ins, _is_source(item)))
            self.signatures[body] = (tuple(items), tuple(numbers[value] for value in body.outputs))
        return self.signatures[body]

    def lowering(self, op: Op) -> Callable[[Node, Context], nn.Module | Function]:
        """What makes a leaf of an op: a module under its name, or a function."""
        return registry.load("torch", op.op_name)

    def _leaf(self, node: Node) -> nn.Module | Function:
        leaf = self.lowering(node.op)(node, self.context)
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
            step, last_only, cells = self._placeholders(graph, env, states)
            tail = set() if last_only is None else self._tail(body)
        else:
            for i, value in enumerate(body.inputs):
                env[value] = graph.placeholder("x" if i == 0 else f"x{i}")
            if self._takes_step(body):
                step = graph.placeholder("step", default_value=None)
            endings: dict[str, int] = {}
            for path, state in states:
                ending = state.name.rpartition(".")[2]
                endings[ending] = endings.get(ending, 0) + 1
                suffix = "" if endings[ending] == 1 else f"_{endings[ending]}"
                cells[path] = graph.placeholder(f"{ending}{suffix}", default_value=None)
        is_mixed = any(not _is_source(item) for item in body.items)
        for number, item in enumerate(body.items):
            args: list[Any] = [env[value] for value in item.inputs]
            # What is made of an encoder's tokens only is left out of the calls that bring none.
            is_left_out = is_mixed and _is_source(item)
            if isinstance(item, Call):
                inner = self._states(item.body)
                if self._takes_step(item.body):
                    args += [step, *(cells[f"{item.name}.{path}"] for path, _ in inner)]
                result = _module(graph, item.name, args, is_left_out=is_left_out)
            else:
                leaf = leaves[item]
                if isinstance(leaf, Function):
                    target = left_out(leaf.target) if is_left_out else leaf.target
                    result = _function(graph, item.op.op_name, target, tuple(args), leaf.keywords)
                else:
                    if item.states or item.op.takes_step:
                        args += [step, *(cells[state.name] for state in item.states.values())]
                    result = _module(graph, item.name, args, is_left_out=is_left_out)
            if len(item.outputs) == 1:
                env[item.outputs[0]] = result
            else:
                take = part_or_none if is_left_out else operator.getitem
                for i, value in enumerate(item.outputs):
                    env[value] = _function(graph, f"{result.name}_{i}", take, (result, i))
            for i, value in enumerate(item.outputs):
                # By number: bodies of other graphs that print the same source share this class.
                env[value].meta["made_by"] = (number, i)
            if tail.intersection(item.outputs):
                # The final norm and the head need no more tokens than the caller does.
                read = {value for later in body.items[body.items.index(item) + 1 :] for value in later.inputs}
                for value in (read | set(body.outputs)).intersection(env):
                    if _counts_tokens(value):
                        env[value] = _function(graph, "last", last_tokens, (env[value], step, last_only))
        results = [env[value] for value in body.outputs]
        graph.output(results[0] if len(results) == 1 else tuple(results))
        code, imports = source_of(graph)
        return scope_class(name, code, imports, graph)

    def _placeholders(
        self, graph: fx.Graph, env: dict[Value, fx.Node], states: list[tuple[str, State]]
    ) -> tuple[fx.Node | None, fx.Node | None, dict[str, fx.Node]]:
        """The arguments of the whole model: (step, last_only, state -> its tensor). One that keeps nothing has no cache."""
        inputs = self.graph.inputs
        main = graph.placeholder(next(iter(inputs)))
        step = last_only = None
        cells: dict[str, fx.Node] = {}
        if self.graph.mask != "bidirectional":
            step = graph.placeholder("step", default_value=None)
            cache = graph.placeholder("cache", default_value=None)
            last_only = graph.placeholder("last_only", default_value=False)
            cells = {path: _function(graph, _short(path), state_of, (cache, path)) for path, _ in states}
        # The main input first: what a caller always gives says how many tokens there are, a padding may be left out.
        given = {next(iter(inputs)): main}
        for name in list(inputs)[1:]:
            if not _is_position(name):
                given[name] = graph.placeholder(name, default_value=None)
        for name, value in inputs.items():
            if _is_position(name):
                start = name.removesuffix("positions")
                ids = next(
                    given[other] for other in given if other.startswith(start) and inputs[other].shape == value.shape
                )
                if any(value in item.inputs for item in self.graph.root.items):
                    padding = given.get(f"{start}attention_mask")
                    known = (ids, padding) if start or step is None else (ids, padding, step)
                    env[value] = _function(graph, name, token_positions, known)
            elif value.dtype == "int64" and name.endswith("type_ids"):
                ids = next(given[other] for other in inputs if inputs[other].shape == value.shape and other in given)
                env[value] = _function(graph, f"{name}_or_zeros", or_zeros, (given[name], ids))
            else:
                env[value] = given[name]
        return step, last_only, cells

    def _tail(self, body: Body) -> set[Value]:
        """What the last layer hands on."""
        layers = [item for item in body.items if isinstance(item, Call) and LAYER.search(item.name)]
        return set(layers[-1].outputs) if layers else set()

    def _takes_step(self, body: Body) -> bool:
        """Whether anything below keeps a state, or wants the step for another reason."""
        if body not in self.steps:
            self.steps[body] = any(
                self._takes_step(item.body) if isinstance(item, Call) else bool(item.states) or item.op.takes_step
                for item in body.items
            )
        return self.steps[body]


def _module(graph: fx.Graph, name: str, args: list[Any], *, is_left_out: bool) -> fx.Node:
    """A call of the module under a name, left out where its first argument is."""
    if not is_left_out:
        return graph.call_module(name, tuple(args))
    return _function(graph, name.replace(".", "_"), when_given, (graph.get_attr(name), *args))


def _is_source(item: Node | Call) -> bool:
    """Whether an item makes nothing but what belongs to an encoder's tokens."""
    return bool(item.outputs) and all(SOURCE in value.shape for value in item.outputs)


def _counts_tokens(value: Value) -> bool:
    return len(value.shape) > 2 and value.shape[1] == SEQ


def _is_position(name: str) -> bool:
    return name == "positions" or name.endswith("_positions")


def _function(
    graph: fx.Graph, name: str, target: Any, args: tuple[Any, ...], keywords: dict[str, Any] | None = None
) -> fx.Node:
    """A call under a readable name, which fx makes unique."""
    return graph.create_node("call_function", target, args, keywords or {}, name=name)


def _short(path: str) -> str:
    """``layers.3.mixer.attention.key`` -> ``layer_3_key``."""
    parts = path.split(".")
    if "layers" not in parts:
        return parts[-1]
    return f"layer_{parts[parts.index('layers') + 1]}_{parts[-1]}"


def _is_tied(node: Node) -> bool:
    return isinstance(node.op, Linear | Embedding) and node.op.tied


def _class_name(call: Call) -> str:
    """``DecoderLayer`` for layers, the scope's name in capitals elsewhere."""
    if LAYER.search(call.name):
        return "Layer"
    return "".join(part.title() for part in call.name.replace(".", "_").split("_"))


def place(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module under a dotted name; numbers become elements of a ModuleList."""
    *parents, last = path.split(".")
    home: nn.Module = root
    for parent, inner in pairwise((*parents, last)):
        if parent not in home._modules:
            home.add_module(parent, nn.ModuleList() if inner.isdecimal() else nn.Module())
        home = home.get_submodule(parent)
    home.add_module(last, module)
