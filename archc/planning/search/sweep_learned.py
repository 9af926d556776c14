"""What traces have taught of the layers and roots of a spec's variants, each under all that it depends on."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from archc.estimation.placed import Placed, place
from archc.graph.graph import Graph
from archc.ir.op import Op
from archc.ir.values import Body, Call, Node, Value
from archc.planning.search.sweep_costs import Cost, Row, Sizes, Totals, added
from archc.planning.search.sweep_watch import Asked, Seen, Types, Watch
from archc.spec.schedule import LayerPlan

_LAYER = re.compile(r"((?:.+?\.)?layers\.[0-9]+)(?:\.|$)")


class Run(NamedTuple):
    """Equal layers in a row. ``owner`` is the layer whose rows a layer reads, -1 where it reads none."""

    plan: LayerPlan
    is_owner: bool
    owner: int
    first: int
    length: int


class Stacked(NamedTuple):
    """A stack of a variant: its section, its layers; ``counts`` has them by plan where none reads another, else nothing."""

    section: str
    num_layers: int
    runs: tuple[Run, ...]
    counts: Mapping[LayerPlan, int]


class Variant(NamedTuple):
    """A variant as numbers of contents: ``root`` of what layers stand in, ``ids`` of mixers and ffns by name.

    ``readers`` maps a mixer to the one whose rows it reads. ``mtp`` numbers further prediction layers, 0 where there are none.
    """

    root: Hashable
    ids: Mapping[str, int]
    readers: Mapping[str, str]
    stacks: Sequence[Stacked]
    mtp: Hashable


class _Step(NamedTuple):
    asked: Asked
    is_free: bool
    state: int
    shared: int
    cost: Cost
    hoists: tuple[Hashable, ...]


class _Whole(NamedTuple):
    """A root, or what its first layer is given; ``counts`` are the numbers of layers it holds for, None for any."""

    counts: tuple[int, ...] | None
    state: int = 0
    cost: Cost | None = None
    decodes: bool = True


class Learned:
    """Steps from layer to layer, beginnings of stacks, and roots."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._types: dict[Types, int] = {(): 0}
        self._stacks: dict[Hashable, int] = {}
        self._steps: dict[Hashable, list[_Step]] = {}
        self._entries: dict[int, list[_Whole]] = {}
        self._roots: dict[Hashable, list[_Whole]] = {}
        self._hoists: dict[Hashable, Row] = {}
        self._mtp: set[Hashable] = set()
        self.distrusted: set[Hashable] = set()
        """Roots of which a sum was no estimate."""

    def totals(self, variant: Variant) -> Totals | None:
        """The sum over root and layers; None where something is not known."""
        if variant.root in self.distrusted or (variant.mtp and (variant.root, variant.mtp) not in self._mtp):
            return None
        counts = tuple([stack.num_layers for stack in variant.stacks])
        costs: dict[Cost, int] = {}
        hoists: set[Hashable] = set()
        finals: list[int] = []
        state = 0
        for stack in variant.stacks:
            place_id = self._stacks.get((variant.root, stack.section, state))
            entry = None if place_id is None else _holding(self._entries[place_id], counts)
            if place_id is None or entry is None:
                return None
            end = self._walk(variant, stack, place_id, entry.state, costs, hoists)
            if end is None:
                return None
            state = end
            finals.append(state)
        whole = _holding(self._roots.get((variant.root, *finals), ()), counts)
        if whole is None or whole.cost is None:
            return None
        rows = [whole.cost.row, *(cost.times(count) for cost, count in costs.items())]
        rows += [self._hoists[hoist] for hoist in hoists]
        return Totals(added(rows), self.sizes, whole.decodes)

    def _walk(
        self,
        variant: Variant,
        stack: Stacked,
        place_id: int,
        state: int,
        costs: dict[Cost, int],
        hoists: set[Hashable],
    ) -> int | None:
        if stack.counts and self._count(variant, stack, place_id, state, costs, hoists):
            return state
        rows: dict[int, int] = {}
        for run in stack.runs:
            index, end = run.first, run.first + run.length
            while index < end:
                key = _key(variant, place_id, state, run.plan, run.is_owner, rows.get(run.owner, 0))
                step = _fitting(self._steps.get(key, ()), index, stack.num_layers)
                if step is None:
                    return None
                # Where a layer hands on what it was given and asks nothing, all of its kind in a row do.
                count = end - index if step.is_free and step.state == state else 1
                costs[step.cost] = costs.get(step.cost, 0) + count
                hoists.update(step.hoists)
                rows[index] = step.shared
                state = step.state
                index += count
        return state

    def _count(
        self,
        variant: Variant,
        stack: Stacked,
        place_id: int,
        state: int,
        costs: dict[Cost, int],
        hoists: set[Hashable],
    ) -> bool:
        """Add layers by plan, whatever their order, where each hands on what it was given and asks nothing."""
        found: list[tuple[_Step, int]] = []
        for plan, count in stack.counts.items():
            step = _fitting(self._steps.get(_key(variant, place_id, state, plan, False, 0), ()), -1, stack.num_layers)
            if step is None or not step.is_free or step.state != state:
                return False
            found.append((step, count))
        for step, count in found:
            costs[step.cost] = costs.get(step.cost, 0) + count
            if step.hoists:
                hoists.update(step.hoists)
        return True

    def learn(self, variant: Variant, graph: Graph, watch: Watch) -> None:
        """What a trace says of a variant's layers and root; what can't be taken apart is distrusted."""
        bodies = {call.name: call.body for call in graph.root.calls() if _LAYER.fullmatch(call.name)}
        nodes: dict[Body | None, list[Placed]] = {None: []}
        for placed in place(graph).nodes:
            layer = _LAYER.match(placed.scope) if placed.layer else None
            nodes.setdefault(bodies[layer[1]] if layer else None, []).append(placed)
        hoisted = set(watch.hoisted)
        hoists = _Hoists(graph, watch, [placed for placed in nodes[None] if placed.node in hoisted], self.sizes)
        if watch.moved or hoists.is_tangled or _share_weights(nodes.values()):
            self.distrusted.add(variant.root)
            return
        self._hoists |= hoists.rows
        counts = tuple(stack.num_layers for stack in variant.stacks) if watch.root_reads_count else None
        costs: dict[Body, Cost] = {}
        finals: list[int] = []
        state = 0
        for stack in variant.stacks:
            layers = [seen for seen in watch.layers if seen.section == stack.section]
            place_id = self._stacks.setdefault((variant.root, stack.section, state), len(self._stacks))
            entries = self._entries.setdefault(place_id, [])
            if _holding(entries, tuple(each.num_layers for each in variant.stacks)) is None:
                entries.append(_Whole(counts, self._number(layers[0].streams)))
            for index, seen in enumerate(layers):
                key = _key(
                    variant, place_id, self._number(seen.streams), seen.plan, seen.is_owner, self._number(seen.rows)
                )
                steps = self._steps.setdefault(key, [])
                if _fitting(steps, index, stack.num_layers) is None:
                    if seen.body not in costs:
                        costs[seen.body] = Cost(graph, nodes[seen.body], self.sizes)
                    steps.append(self._step(seen, costs[seen.body], hoists.of(seen.body)))
            state = self._number(layers[-1].outputs)
            finals.append(state)
        roots = self._roots.setdefault((variant.root, *finals), [])
        if _holding(roots, tuple(stack.num_layers for stack in variant.stacks)) is None:
            own = [placed for placed in nodes[None] if placed.node not in hoisted]
            roots.append(_Whole(counts, 0, Cost(graph, own, self.sizes), graph.mask != "bidirectional"))
        if variant.mtp:
            self._mtp.add((variant.root, variant.mtp))

    def _step(self, seen: Seen, cost: Cost, hoists: tuple[Hashable, ...]) -> _Step:
        state, shared = self._number(seen.outputs), self._number(seen.shared)
        return _Step(seen.asked, seen.asked.is_free, state, shared, cost, hoists)

    def _number(self, kinds: Types) -> int:
        return self._types.setdefault(kinds, len(self._types))


def _key(variant: Variant, place_id: int, state: int, plan: LayerPlan, is_owner: bool, rows: int) -> Hashable:
    """Everything that the layer of a plan depends on, less what it asks."""
    ids = variant.ids
    # A reader's rows are stored by its owner's policy.
    owner = variant.readers.get(plan.mixer or "")
    return (
        place_id,
        state,
        ids[plan.mixer] if plan.mixer else 0,
        ids[owner] if owner else 0,
        ids[plan.ffn] if plan.ffn else 0,
        ids[plan.cross] if plan.cross else 0,
        is_owner,
        rows,
    )


def _fitting(steps: Sequence[_Step], index: int, num_layers: int) -> _Step | None:
    for step in steps:
        if step.is_free or step.asked.holds(index, num_layers):
            return step
    return None


def _holding(known: Sequence[_Whole], counts: tuple[int, ...]) -> _Whole | None:
    for whole in known:
        if whole.counts is None or whole.counts == counts:
            return whole
    return None


def _share_weights(parts: Any) -> bool:
    """Whether a weight is used in two bodies, or in one and at the root: it then is counted with neither alone."""
    seen: set[int] = set()
    for nodes in parts:
        mine = {id(param) for placed in nodes for param in placed.node.params.values()}
        if seen & mine:
            return True
        seen |= mine
    return False


class _Hoists:
    """What layers placed at the root and what of it costs anything: each once a model, whichever layers ask for it."""

    def __init__(self, graph: Graph, watch: Watch, placed: Sequence[Placed], sizes: Sizes) -> None:
        self._names: dict[Value, Hashable] = {value: name for name, value in watch.inputs.items()}
        hoisted = set(watch.hoisted)
        rest = 0
        for item in graph.root.items:
            if isinstance(item, Node) and item in hoisted:
                name: Hashable = (item.op, tuple(self._names.get(value) for value in item.inputs))
            elif isinstance(item, Call) and _LAYER.fullmatch(item.name):
                # What depends on a layer has no name of its own.
                continue
            else:
                name, rest = rest, rest + 1
            self._names.update({value: (name, at) for at, value in enumerate(item.outputs)})
        self.rows: dict[Hashable, Row] = {}
        self.is_tangled = False
        for each in placed:
            cost = Cost(graph, [each], sizes)
            if any(cost.row):
                self.rows[self._name(each.node.op, each.node.inputs)] = cost.row
        self._wanted = {body: tuple(self._costly(asked)) for body, asked in watch.wanted.items()}
        self.is_tangled |= any(self._costly(watch.root_wanted))

    def of(self, body: Body) -> tuple[Hashable, ...]:
        """The costly ones that a body asks for."""
        return self._wanted[body]

    def _costly(self, asked: Sequence[tuple[Op, tuple[Value, ...]]]) -> list[Hashable]:
        names = dict.fromkeys(self._name(op, inputs) for op, inputs in asked)
        return [name for name in names if name in self.rows]

    def _name(self, op: Op, inputs: Sequence[Value]) -> Hashable:
        names = tuple(self._names.get(value) for value in inputs)
        self.is_tangled |= any(name is None for name in names) and any(True for _ in self.rows)
        return (op, names)
