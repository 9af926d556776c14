"""What pipeline stages hand on to each other, and which weights stand on which of them."""

from __future__ import annotations

from archc.graph.graph import Graph, join, walk_scopes
from archc.ir.values import Node, Param, Value
from archc.planning.stages import Item, StageItems


def items_of(graph: Graph, stage: StageItems) -> list[Item]:
    """What one stage runs, in the root's order."""
    known: set[Item] = {*stage.before, *stage.layers, *stage.behind}
    return [item for item in graph.root.items if item in known]


def values_between(graph: Graph, stages: list[StageItems]) -> list[tuple[Value, ...]]:
    """For each stage but the last the values that it hands to the next one, in the order in which they are made.

    What is made early and read late goes through the stages between. The model's inputs are not among them: every stage is
    given those.
    """
    made = [{value for item in items_of(graph, stage) for value in item.outputs} for stage in stages]
    handed: list[set[Value]] = [set() for _ in stages[1:]]
    anywhere = set[Value]().union(*made)
    for index, stage in enumerate(stages):
        read = {value for item in items_of(graph, stage) for value in item.inputs}
        if index == len(stages) - 1:
            read |= set(graph.outputs.values())
        for value in read & anywhere - made[index]:
            source = max(earlier for earlier in range(index) if value in made[earlier])
            for boundary in range(source, index):
                handed[boundary].add(value)
    order = [value for item in graph.root.items for value in item.outputs]
    return [tuple(value for value in order if value in each) for each in handed]


def params_of_stages(graph: Graph, stages: list[StageItems]) -> list[dict[str, Param]]:
    """For each stage its weights by their names in ``state_dict()``, each tied weight once."""
    return [
        {
            join(prefix, param.name): param
            for item in items_of(graph, stage)
            for prefix, node in ([("", item)] if isinstance(item, Node) else walk_scopes(item.body, item.name))
            for param in node.params.values()
        }
        for stage in stages
    ]


def shared_params(graph: Graph, stages: list[StageItems]) -> dict[str, tuple[int, ...]]:
    """Weights that stand on several stages (tied tables, biases by distance) and which stages those are, in the graph's order."""
    found: dict[str, list[int]] = {name: [] for name in graph.params()}
    for index, names in enumerate(params_of_stages(graph, stages)):
        for name in names:
            found[name].append(index)
    return {name: tuple(places) for name, places in found.items() if len(places) > 1}
