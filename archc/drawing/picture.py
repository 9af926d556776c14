"""What a diagram shows, read off a graph and its spec: columns of boxes and layers, and a card for each kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from archc.drawing.facts import kept, nodes_of, params_of, stated
from archc.drawing.folding import Fold, beginnings, fold, written
from archc.estimation.estimate import Estimate, estimate
from archc.expansion import expand
from archc.graph.graph import LAYER, Graph
from archc.ir.values import Body, Call, Node, Param
from archc.spec.schema import Spec, Stack
from archc.units import gib, si

_NOT_CONTENT = ("positions", "attention_mask", "prefix_length")
"""Ends of the names of inputs that say where tokens are and not what they are."""

SubLayer = tuple[str, str]
"""(what it is in its layer: mixer, cross or ffn; its name in the spec)."""
Layer = tuple[SubLayer, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Something outside the layers: a name, its op, how many parameters, and the shape of the largest."""

    name: str
    count: str
    detail: str


@dataclass(slots=True)
class Column:
    """A stack from top to bottom: what goes in, boxes, layers, boxes, what comes out."""

    title: str
    notes: list[str]
    layers: tuple[Fold[Layer], ...]
    source: str = ""
    result: str = ""
    above: list[Box] = field(default_factory=list[Box])
    below: list[Box] = field(default_factory=list[Box])


@dataclass(frozen=True, slots=True)
class Card:
    """A mixer or a feed-forward: what it is, how often it is there, what the spec states, what each of them holds."""

    name: str
    kind: str
    family: str
    hue: int
    size: str
    parameters: str
    keys: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(slots=True)
class Picture:
    """All of a diagram; ``extra`` are the extra prediction layers."""

    name: str
    description: str
    facts: list[str]
    columns: list[Column]
    cards: dict[str, Card]
    extra: Column | None = None


def picture(spec: Spec) -> Picture:
    """What a diagram of a spec shows.

    Raises:
        GraphError: a kind builds something illegal.
    """
    graph = expand(spec)
    columns = _columns(graph, {"": spec.main, **spec.stacks()})
    extra = None
    graphs = [graph]
    if graph.mtp is not None and spec.mtp is not None:
        (extra,) = _columns(graph.mtp, {"": spec.mtp})
        extra.title = f"mtp: {extra.title}, counted apart"
        graphs.append(graph.mtp)
    return Picture(spec.name, spec.description, _facts(spec, estimate(graph)), columns, _cards(spec, graphs), extra)


def _facts(spec: Spec, found: Estimate) -> list[str]:
    counts, cache = found.parameters, found.cache
    per_sequence = cache.total("recurrent_bytes_per_sequence") + cache.total("convolution_bytes_per_sequence")
    facts = [f"{si(counts.total)} parameters"]
    if counts.active != counts.total:
        facts.append(f"{si(counts.active)} active a token")
    facts += [f"hidden size {spec.embedding.hidden_size:,}", spec.dtype]
    if spec.max_position_embeddings is not None:
        facts.append(f"{spec.max_position_embeddings:,} positions")
    facts += [f"position {spec.position.kind_name}", f"norm {spec.norm.kind_name}"]
    if cache.bytes_per_token:
        facts.append(f"cache {cache.bytes_per_token:,} B a token")
    if source := cache.total("bytes_per_source_token"):
        facts.append(f"{'' if cache.bytes_per_token else 'cache '}{source:,} B a token of the encoder")
    if per_sequence:
        facts.append(f"states {gib(per_sequence)} a sequence")
    return facts


def _columns(graph: Graph, sections: Mapping[str, Stack]) -> list[Column]:
    """One column a stack; what belongs to none stands before the first or after the last."""
    layers: dict[str, list[Call]] = {}
    for call in graph.root.calls():
        if found := LAYER.match(call.name):
            layers.setdefault(found["stack"] or "", []).append(call)
    stacks = list(layers)
    columns = {stack: _column(sections[stack], stack, calls) for stack, calls in layers.items()}
    seen: set[Param] = set()
    done: set[str] = set()
    for item in graph.root.items:
        if found := LAYER.match(item.name):
            done.add(found["stack"] or "")
            continue
        stack = _stack_of(item.name, stacks, done)
        box = _box(item, item.name.removeprefix(f"{stack}."), seen)
        if box is not None:
            (columns[stack].below if stack in done else columns[stack].above).append(box)
    ordered = list(columns.values())
    ordered[-1].result = ", ".join(graph.outputs)
    used = {value for item in graph.root.items for value in item.inputs}
    read = [name for name, value in graph.inputs.items() if value in used and not name.endswith(_NOT_CONTENT)]
    encoders = [name for name in read if name.startswith("encoder_")]
    ordered[0].source = ", ".join(encoders or read)
    ordered[-1].source = ", ".join(name for name in read if name not in encoders)
    return ordered


def _stack_of(name: str, stacks: Sequence[str], done: set[str]) -> str:
    """The stack that a name of the root begins with, else the one that is being read."""
    named = next((stack for stack in stacks if stack and name.startswith(f"{stack}.")), None)
    if named is not None:
        return named
    return next((stack for stack in stacks if stack not in done), stacks[-1])


def _column(section: Stack, stack: str, calls: Sequence[Call]) -> Column:
    layers = [tuple((inner.name, inner.body.label) for inner in call.body.calls() if inner.body.part) for call in calls]
    count = f"{len(calls):,} layer{'s' if len(calls) > 1 else ''}"
    words = [f"{stack}: {count}" if stack else count, section.block.kind_name]
    if section.mask is not None and section.mask != "causal":
        words.append(section.mask)
    tracks: dict[str, tuple[Fold[str], ...]] = {}
    for role in dict.fromkeys(role for layer in layers for role, _ in layer):
        tracks[role] = fold([next((name for at, name in layer if at == role), "none") for layer in layers])
    notes = [f"{role} {written(track)}" for role, track in tracks.items()]
    starts = {start for track in tracks.values() for start in beginnings(track)}
    return Column(", ".join(words), notes, fold(layers, starts))


def _box(item: Node | Call, name: str, seen: set[Param]) -> Box | None:
    """What holds weights, or reads those of another."""
    params = [param for node in nodes_of(item) for param in node.params.values()]
    if not params:
        return None
    own = [param for param in dict.fromkeys(params) if param not in seen]
    seen.update(own)
    largest = max(params, key=lambda param: param.elements)
    shape = " x ".join(f"{dim:,}" for dim in largest.shape)
    return Box(name, si(sum(param.elements for param in own)) if own else "tied", shape)


def _cards(spec: Spec, graphs: Iterable[Graph]) -> dict[str, Card]:
    """Name -> card of every mixer and ffn that some layer holds, mixers first."""
    placed: dict[str, dict[str, dict[Body, int]]] = {"mixer": {}, "ffn": {}}
    for graph in graphs:
        for call in graph.root.calls():
            for inner in call.body.calls() if LAYER.match(call.name) else ():
                if inner.body.part in placed:
                    counts = placed[inner.body.part].setdefault(inner.body.label, {})
                    counts[inner.body] = counts.get(inner.body, 0) + 1
    cards: dict[str, Card] = {}
    for family, kinds in (("mixer", spec.mixers), ("ffn", spec.ffns)):
        for name, counts in placed[family].items():
            cards[name] = _card(name, family, kinds, counts, len(cards), spec.dtype)
    return cards


def _card(
    name: str, family: str, kinds: Mapping[str, Any], bodies: Mapping[Body, int], number: int, dtype: str
) -> Card:
    kind, times = kinds[name], sum(bodies.values())
    sizes = dict.fromkeys(sum(param.elements for param in params_of(body)) for body in bodies)
    each = " or ".join(si(size) for size in sizes)
    parameters = f"{times:,} times, {each} parameters each" if times > 1 else f"once, {each} parameters"
    told: dict[str, int] = {}
    for body, count in bodies.items():
        for line in kept(body, dtype):
            told[line] = told.get(line, 0) + count
    lines = [line if count == times else f"{line}, {count:,} times" for line, count in told.items()]
    return Card(name, kind.kind_name, family, number, each, parameters, tuple(stated(kind)), tuple(lines))
