"""Which layers, and what before and behind them, stand on which pipeline stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from archc.graph.graph import LAYER, Graph
from archc.ir.size import BATCH
from archc.ir.values import Call, Node, Value

Item = Node | Call


@dataclass(slots=True, eq=False, repr=False)
class StageItems:
    """The scopes and ops of the root that one stage runs, in order."""

    before: list[Item] = field(default_factory=list[Item])
    layers: list[Call] = field(default_factory=list[Call])
    behind: list[Item] = field(default_factory=list[Item])


@dataclass(slots=True, eq=False, repr=False)
class Staged:
    """All stages, why there can't be so many, and what is uneven."""

    stages: list[StageItems]
    problems: list[str]
    notes: list[str]


def layers_of_stages(num_layers: int, pp: int) -> list[int]:
    """How many layers each stage runs: vLLM's ``get_pp_indices``, which spares the last stage and then the first."""
    counts = [num_layers // pp] * pp
    for place in range(2, num_layers % pp + 2):
        counts[-place] += 1
    return counts


def split_into_stages(graph: Graph, pp: int) -> Staged:
    """The graph's layers in ``pp`` runs. With more stages than layers it is split into as many as there are layers."""
    layers = [call for call in graph.root.calls() if LAYER.match(call.name)]
    problems: list[str] = []
    notes: list[str] = []
    if pp > max(len(layers), 1):
        problems.append(f"{len(layers)} layers can't be cut into {pp} stages (pp)")
        pp = max(len(layers), 1)
    counts = layers_of_stages(len(layers), pp)
    if len(set(counts)) > 1:
        notes.append(f"{len(layers)} layers on pp {pp} are uneven: {', '.join(map(str, counts))}")
    stages = [StageItems() for _ in counts]
    stage_of: dict[Item, int] = {}
    begin = 0
    for index, count in enumerate(counts):
        stages[index].layers = layers[begin : begin + count]
        stage_of |= dict.fromkeys(stages[index].layers, index)
        begin += count
    makers = {value: item for item in graph.root.items for value in item.outputs}
    _place_others(graph, stages, stage_of)
    _copy_what_is_not_sent(graph, stages, makers)
    problems += _shared_rows(layers, stage_of, makers)
    return Staged(stages, problems, notes)


def _place_others(graph: Graph, stages: list[StageItems], stage_of: dict[Item, int]) -> None:
    """What is no layer goes to the stage of the next one, and behind the last layer to the last stage."""
    waiting: list[Item] = []
    for item in graph.root.items:
        if item not in stage_of:
            waiting.append(item)
            continue
        if waiting:
            index = stage_of[item]
            stages[index].before += waiting
            stage_of |= dict.fromkeys(waiting, index)
            waiting = []
    stages[-1].behind += waiting
    stage_of |= dict.fromkeys(waiting, len(stages) - 1)


def _copy_what_is_not_sent(graph: Graph, stages: list[StageItems], makers: dict[Value, Item]) -> None:
    """Tables that several stages read (biases by distance, rotations) stand on each; values of tokens are sent on."""
    tables = set(tables_of_positions(graph))
    for stage in stages:
        known: set[Item] = {*stage.before, *stage.layers, *stage.behind}
        wanted = [value for item in list(known) for value in item.inputs]
        while wanted:
            value = wanted.pop()
            item = makers.get(value)
            if item is None or item in known or (isinstance(item, Call) and LAYER.match(item.name)):
                continue
            if is_stream(value) and item not in tables:
                continue
            known.add(item)
            stage.before.append(item)
            wanted += item.inputs


def tables_of_positions(graph: Graph) -> list[Node]:
    """What is made of the model's inputs alone, without weights: rotations and masks, cheaper to make again than to send."""
    known = set(graph.inputs.values())
    found: list[Node] = []
    for node in graph.root.nodes():
        if not node.params and known.issuperset(node.inputs):
            found.append(node)
            known.update(node.outputs)
    return found


def is_stream(value: Value) -> bool:
    """Whether it has a row a token, (batch, tokens, width), as what stages send each other has."""
    return len(value.shape) == 3 and value.shape[0] == BATCH


def _shared_rows(layers: list[Call], stage_of: dict[Item, int], makers: dict[Value, Item]) -> Iterator[str]:
    """Rows of a cache that a layer of another stage keeps can't be read; a reason for each layer that keeps such rows."""
    readers: dict[str, dict[str, None]] = {}
    for call in layers:
        for value in call.inputs:
            maker = makers.get(value)
            if not isinstance(maker, Call) or not LAYER.match(maker.name) or stage_of[maker] == stage_of[call]:
                continue
            if any("past" in str(dim) for dim in value.shape):
                readers.setdefault(maker.name, {})[call.name] = None
    for keeper, names in readers.items():
        first, others = next(iter(names)), len(names) - 1
        who = f"{first} reads" if not others else f"{first} and {others} other{'s' if others > 1 else ''} read"
        yield f"{who} rows that {keeper} keeps on another stage (pp)"
