"""The part of a model that one pipeline stage runs: its layers, and a forward cut from the model's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from archc.errors import Problem, SpecError
from archc.graph.graph import Graph
from archc.ir.values import Value
from archc.planning.stage_values import params_of_stages, shared_params, values_between
from archc.planning.stages import split_into_stages
from archc.torch_backend.parts import cut, results_of
from archc.torch_backend.scopes import ScopeModule, scope_class, source_of


@dataclass(frozen=True, eq=False)
class Stage:
    """One of ``count`` stages. ``received`` and ``sent`` are the values that it is given and hands on, as the graph types them.

    ``arguments`` are the names under which the stage's forward takes what it receives, ``inputs`` those of the model's inputs
    that it reads. ``shared`` maps weights that stand on several stages (tied tables, biases by distance) to those, for all
    stages alike.
    """

    index: int
    count: int
    received: tuple[Value, ...]
    sent: tuple[Value, ...]
    arguments: tuple[str, ...]
    inputs: tuple[str, ...]
    shared: dict[str, tuple[int, ...]]

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1

    @property
    def second_copies(self) -> frozenset[str]:
        """Weights of this stage that an earlier one holds too, by the graph's names: counted there, and saved there."""
        return frozenset(name for name, places in self.shared.items() if self.index in places[1:])


def take_stage(model: ScopeModule, graph: Graph, index: int, count: int) -> Stage:
    """Make a whole model, best on the meta device, one stage of it, in place: other modules leave the tree, names stay.

    ``graph`` is what the model's forward was made from: a rank's own where tensor parallelism has cut it.
    ``forward(*received, **inputs)`` gives a tuple of what the next stage is to receive, the last stage the model's outputs.
    Values go through stages that don't read them. A tied table stays under its own name, beside the head that reads it.

    Raises:
        SpecError: the model can't be cut so, with every reason.
    """
    staged = split_into_stages(graph, count)
    if staged.problems:
        raise SpecError([Problem(message=message, code="split") for message in staged.problems])
    handed = values_between(graph, staged.stages)
    received = handed[index - 1] if index else ()
    sent = handed[index] if index < count - 1 else ()
    whole = type(model).graph
    makers = _makers(whole, graph)
    inputs = [makers[value] for value in received]
    outputs = results_of(whole) if index == count - 1 else [makers[value] for value in sent]
    part = cut(whole, inputs, outputs)
    names = [str(node.target) for node in part.nodes if node.op == "placeholder"]
    _keep(model, part, graph, set(params_of_stages(graph, staged.stages)[index]))
    model.__class__ = scope_class(type(model).__name__, *source_of(part), part)
    return Stage(
        index=index,
        count=count,
        received=received,
        sent=sent,
        arguments=tuple(names[: len(received)]),
        inputs=tuple(names[len(received) :]),
        shared=shared_params(graph, staged.stages),
    )


def _makers(whole: fx.Graph, graph: Graph) -> dict[Value, fx.Node]:
    """The fx node that makes each value of the root."""
    found: dict[Value, fx.Node] = {}
    for node in whole.nodes:
        if "made_by" in node.meta:
            number, place = node.meta["made_by"]
            found[graph.root.items[number].outputs[place]] = node
    return found


def _keep(model: nn.Module, part: fx.Graph, graph: Graph, weights: set[str]) -> None:
    """Take out of the tree what the stage neither calls nor holds a weight in."""
    called = {str(node.target) for node in part.nodes if node.op in ("call_module", "get_attr")}
    _prune(model, "", called, called | {name.rpartition(".")[0] for name in weights})
    # What stays for one weight only (the table that a head reads) may hold others.
    for name in graph.params():
        path, _, last = name.rpartition(".")
        if name in weights or any(path == each or path.startswith(f"{each}.") for each in called):
            continue
        try:
            home = model.get_submodule(path)
        except AttributeError:
            continue
        tables: tuple[dict[str, Any], ...] = (home._parameters, home._buffers)
        for table in tables:
            table.pop(last, None)


def _prune(module: nn.Module, path: str, called: set[str], kept: set[str]) -> None:
    for name, child in list(module._modules.items()):
        full = f"{path}.{name}" if path else name
        if full in called or child is None:
            continue
        if full in kept or any(each.startswith(f"{full}.") for each in kept):
            _prune(child, full, called, kept)
        else:
            del module._modules[name]


def weights_here(model: nn.Module, graph: Graph) -> dict[str, Tensor]:
    """The weights of the graph that a model, or a stage of it, holds, by the graph's names, each tied weight once."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: tensors[name] for name in graph.params() if name in tensors}
