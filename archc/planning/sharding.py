"""What one rank holds: every weight and state of a graph, cut along its logical axes, and which cuts can't be.

Rules, those of Megatron-LM (arXiv 1909.08053) and of vLLM's tensor parallelism:

* A dimension is cut where its axis says so: ``heads``, ``kv_heads``, ``ffn`` and ``vocab`` by tp, ``experts`` by ep. A weight is
  cut once by tp. What has no axis (norms, routers, latents, biases behind a row-parallel product) stands on every rank.
* Heads stay whole. How many there are, the ops of a mixer say (``Op.units``); where they differ, their common divisor counts.
* Where there are fewer kv_heads than tp ranks, each is held by tp / kv_heads of them; one number must divide the other.
* With ep above 1 an expert is whole; else its channels are cut by tp.
* The table of a vocabulary is padded to a multiple of 64 rows before it is cut (vLLM's ``DEFAULT_VOCAB_PADDING_SIZE``), or of
  ``vocab_multiple``: with 1 the first rank holds ``ceil(rows / tp)``, as ``torch.chunk`` and DTensor cut.
* Stages are consecutive layers; layers left over go to the stages before the last, from the back (vLLM's ``get_pp_indices``).
  The first stage has what comes before the layers, the last what comes behind; a tied table stands on both.
* cp cuts the tokens of states that grow; windows and fixed states stand on every rank of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd, prod

from archc.errors import Problem, SpecError
from archc.graph.graph import Graph, join, walk_scopes
from archc.ir.size import Dim, ceil_div
from archc.ir.values import Body, Call, Node, Param, State
from archc.planning.parallel import Parallel
from archc.planning.stages import Item, StageItems, split_into_stages

__all__ = ["Parallel", "ShardedParam", "ShardedState", "Sharding", "Stage", "shard"]

VOCAB_MULTIPLE = 64
"""Rows to a multiple of which serving runtimes pad a table before they cut it."""


@dataclass(slots=True, eq=False, repr=False)
class ShardedParam:
    """A weight of one stage, once for all layers that share its body: ``prefixes`` are those layers, empty outside of them.

    ``cuts`` maps a dimension to (``tp`` or ``ep``, pieces); ``copies`` are the ranks of one model copy's stage (tp, or the ranks
    of ep) that hold the same piece, and ``why`` says why there is more than one. ``is_expert``: it is shared out by ep.
    """

    param: Param
    node: Node
    role: str
    layer: str
    kind: str
    prefixes: tuple[str, ...]
    path: str
    shape: tuple[int, ...]
    cuts: dict[int, tuple[str, int]]
    copies: int
    why: str
    is_expert: bool

    @property
    def count(self) -> int:
        """How many weights of this shape the stage holds."""
        return len(self.prefixes)

    @property
    def elements(self) -> int:
        """Elements of the local piece of one of them."""
        return prod(self.shape)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names in ``state_dict()``."""
        return tuple(join(prefix, join(self.path, self.param.name)) for prefix in self.prefixes)


@dataclass(slots=True, eq=False, repr=False)
class ShardedState:
    """A state of one stage, likewise; ``local`` is the piece that one rank keeps, with symbolic sizes.

    With one copy, ``why`` speaks of a part of the piece that other ranks have too.
    """

    state: State
    local: State
    node: Node
    role: str
    layer: str
    kind: str
    prefixes: tuple[str, ...]
    path: str
    copies: int
    why: str

    @property
    def count(self) -> int:
        return len(self.prefixes)


@dataclass(slots=True, eq=False, repr=False)
class Stage:
    """What every rank of a pipeline stage holds; they are alike."""

    index: int
    layers: tuple[str, ...]
    params: list[ShardedParam] = field(default_factory=list[ShardedParam])
    states: list[ShardedState] = field(default_factory=list[ShardedState])


@dataclass(slots=True, eq=False, repr=False)
class Sharding:
    """A graph on ranks. ``problems`` say why it can't be so; ``notes`` what is held more than once or unevenly."""

    parallel: Parallel
    stages: list[Stage]
    problems: list[str]
    notes: list[str]

    def check(self) -> Sharding:
        """Itself.

        Raises:
            SpecError: the model can't be cut so, with every reason.
        """
        if self.problems:
            raise SpecError([Problem(message=message, code="split") for message in self.problems])
        return self


def shard(graph: Graph, parallel: Parallel, *, vocab_multiple: int = VOCAB_MULTIPLE) -> Sharding:
    """Every weight and state of each stage as one rank holds it. Illegal cuts are listed, and rounded up in the shapes."""
    problems = parallel.problems()
    if problems:
        return Sharding(parallel, [], problems, [])
    staged = split_into_stages(graph, parallel.pp)
    cutter = _Cutter(parallel, vocab_multiple)
    stages = [_stage(cutter, index, items) for index, items in enumerate(staged.stages)]
    notes = [*staged.notes, *cutter.notes()]
    if parallel.ep > 1 and not any(each.is_expert for stage in stages for each in stage.params):
        notes.append(f"ep {parallel.ep} shares nothing: there are no experts")
    if parallel.cp > 1:
        notes.append(f"the {parallel.cp} ranks of cp hold the same weights")
    return Sharding(parallel, stages, [*staged.problems, *cutter.problems()], notes)


def _stage(cutter: _Cutter, index: int, items: StageItems) -> Stage:
    stage = Stage(index, tuple(call.name for call in items.layers))
    seen: set[int] = set()
    for scope, item in (*_outer(items.before), *_layer_items(items.layers), *_outer(items.behind)):
        nodes = [("", item)] if isinstance(item, Node) else list(walk_scopes(item.body, item.name))
        scope.counts = counts_of([node for _, node in nodes])
        for path, node in nodes:
            for role, param in node.params.items():
                if id(param) not in seen:
                    seen.add(id(param))
                    stage.params.append(cutter.param(scope, path, node, role, param))
            for role, state in node.states.items():
                stage.states.append(cutter.state(scope, path, node, role, state))
    return stage


def _outer(items: list[Item]) -> Iterator[tuple[_Scope, Item]]:
    for item in items:
        yield _Scope(item.name if isinstance(item, Node) else item.body.label, "", ("",)), item


class _Scope:
    """A mixer, a feed-forward, or one op outside of those, with the layers in which it stands."""

    def __init__(self, kind: str, layer: str, prefixes: tuple[str, ...]) -> None:
        self.kind, self.layer, self.prefixes = kind, layer, prefixes
        self.counts: dict[str, list[int]] = {}

    def units(self, axis: str, size: int) -> int:
        """Pieces that stay whole."""
        return gcd(*self.counts.get(axis, [size]))

    @property
    def place(self) -> str:
        """``mla (layers.3 and 6 others)``."""
        first, others = self.prefixes[0], len(self.prefixes) - 1
        if not first:
            return self.kind or "the model"
        more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
        return f"{self.kind} ({first}{more})"


def _layer_items(layers: list[Call]) -> Iterator[tuple[_Scope, Item]]:
    """The branches of each distinct layer body once, with the names of all layers that share it."""
    names: dict[Body, list[str]] = {}
    for call in layers:
        names.setdefault(call.body, []).append(call.name)
    for body, prefixes in names.items():
        for item in body.items:
            if isinstance(item, Node):
                kind = "block"
            else:
                kind = item.body.label if item.body.part else item.name
            yield _Scope(kind, body.label, tuple(prefixes)), item


def counts_of(nodes: list[Node]) -> dict[str, list[int]]:
    """Along each axis the numbers of pieces that stay whole: what the ops say, else the sizes there."""
    said: dict[str, list[int]] = {}
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        for axis, count in node.op.units([value.type for value in node.inputs]).items():
            said.setdefault(axis, []).append(count)
        for param in node.params.values():
            for axis, size in zip(param.axes, param.shape, strict=True):
                if axis is not None:
                    sizes.setdefault(axis, []).append(size)
    return {axis: sorted(set(counts)) for axis, counts in (sizes | said).items()}


def units_of(nodes: list[Node]) -> dict[str, int]:
    """Pieces along each axis that stay whole when it is cut: the common divisor of all that say how many."""
    return {axis: gcd(*counts) for axis, counts in counts_of(nodes).items()}


class _Cutter:
    """Cuts weights and states by one ``Parallel`` and remembers what it could not do."""

    def __init__(self, parallel: Parallel, vocab_multiple: int) -> None:
        self.parallel, self.vocab_multiple = parallel, vocab_multiple
        self._problems: dict[str, str] = {}
        self._notes: dict[str, None] = {}

    def problems(self) -> list[str]:
        return list(self._problems.values())

    def notes(self) -> list[str]:
        return list(self._notes)

    def param(self, scope: _Scope, path: str, node: Node, role: str, param: Param) -> ShardedParam:
        is_expert = "experts" in param.axes
        shape: list[int] = []
        cuts: dict[int, tuple[str, int]] = {}
        copies = (self.parallel.stage_ranks // self.parallel.ep if self.parallel.ep > 1 else 1) if is_expert else 1
        why = ""
        for dim, (size, axis) in enumerate(zip(param.shape, param.axes, strict=True)):
            ways, held = self._ways(scope, size, axis, is_expert=is_expert)
            name = "ep" if axis == "experts" else "tp"
            if ways == 1 or any(name == used for used, _ in cuts.values()):
                shape.append(size)
                continue
            cuts[dim] = (name, ways)
            shape.append(self._local(size, axis, ways))
            if held > 1:
                copies, why = held, _few_heads(scope, self.parallel.tp)
        if is_expert and self.parallel.ep > 1:
            why = f"experts go to {self.parallel.ep} of {self.parallel.stage_ranks} ranks" if copies > 1 else ""
        elif not any(name == "tp" for name, _ in cuts.values()) and self.parallel.tp > 1:
            copies = self.parallel.tp
            why = "no axis along which it could be cut"
            if role.endswith("bias") and self._is_summed(scope, node):
                why = "added once, behind the sum over ranks"
            elif "kv_heads" in param.axes:
                why = _few_heads(scope, self.parallel.tp)
        return ShardedParam(
            param, node, role, scope.layer, scope.kind, scope.prefixes, path, tuple(shape), cuts, copies, why, is_expert
        )

    def state(self, scope: _Scope, path: str, node: Node, role: str, state: State) -> ShardedState:
        held, few = self.parallel.tp, False

        def cut(size: int, axis: str | None) -> int:
            nonlocal held, few
            ways, copies = self._ways(scope, size, axis, is_expert=False)
            if axis is not None:
                held, few = min(held, copies), few or copies > 1
            return self._local(size, axis, ways)

        local = node.op.cut_state(role, state, cut, [value.type for value in node.inputs])
        why = _few_heads(scope, self.parallel.tp) if few else "all heads read it" if held > 1 else ""
        if self.parallel.cp > 1:
            if state.growth == "append" and state.token_dim is not None:
                local = _cut_tokens(local, state.token_dim, self.parallel.cp)
            else:
                self._notes[
                    f"{state.name} of {scope.kind}: every one of {self.parallel.cp} cp ranks keeps it whole"
                ] = None
        return ShardedState(state, local, node, role, scope.layer, scope.kind, scope.prefixes, path, held, why)

    def _is_summed(self, scope: _Scope, node: Node) -> bool:
        """Whether a weight of the op is cut along what it sums over, so that ranks have parts of a sum."""
        return any(
            axis not in (None, "experts") and self._ways(scope, size, axis, is_expert=False)[0] > 1
            for param in node.params.values()
            for axis, size in list(zip(param.axes, param.shape, strict=True))[1:]
            if param.axes[0] in (None, "experts") or len(param.axes) > 2
        )

    def _ways(self, scope: _Scope, size: int, axis: str | None, *, is_expert: bool) -> tuple[int, int]:
        """(pieces into which a dimension is cut, ranks that hold the same piece)."""
        tp, ep = self.parallel.tp, self.parallel.ep
        if axis is None:
            return 1, tp
        if axis == "experts":
            self._divides(scope, size, axis, ep, "ep")
            return ep, 1
        if is_expert and ep > 1:
            return 1, 1
        if axis == "vocab":
            padded = -(-size // self.vocab_multiple) * self.vocab_multiple
            if tp > 1 and padded != size:
                self._notes[f"{scope.kind}: {size:,} rows of the vocabulary are padded to {padded:,}"] = None
            if padded % tp and self.vocab_multiple > 1:
                self._notes[
                    f"{scope.kind}: {padded:,} rows of the vocabulary are cut into {tp} unevenly, which vLLM refuses"
                ] = None
            return tp, 1
        units = scope.units(axis, size)
        if axis == "kv_heads" and units < tp and tp % units == 0:
            self._notes[f"{_kv_heads(units)} of {scope.kind} on tp {tp}: each is held by {tp // units} ranks"] = None
            return units, tp // units
        self._divides(scope, units, axis, tp, "tp")
        return tp, 1

    def _divides(self, scope: _Scope, units: int, axis: str, ranks: int, name: str) -> None:
        if units % ranks:
            what = {"ffn": "feed-forward channels"}.get(axis, axis)
            if units == 1:
                what = what.removesuffix("s")
            counts = " and ".join(f"{count:,}" for count in scope.counts.get(axis, [units]))
            self._problems.setdefault(
                f"{scope.kind} {axis} {counts}", f"{counts} {what} of {scope.place} can't be cut into {ranks} ({name})"
            )

    def _local(self, size: int, axis: str | None, ways: int) -> int:
        if ways > 1 and axis == "vocab":
            size = -(-size // self.vocab_multiple) * self.vocab_multiple
        return -(-size // ways)


def _few_heads(scope: _Scope, tp: int) -> str:
    return f"{_kv_heads(scope.units('kv_heads', 1))} on {tp} ranks"


def _kv_heads(count: int) -> str:
    return "1 kv_head" if count == 1 else f"{count:,} kv_heads"


def _cut_tokens(state: State, dim: int, ways: int) -> State:
    """The rows that one of ``ways`` ranks keeps, at most."""

    def cut(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return (*shape[:dim], ceil_div(shape[dim], ways), *shape[dim + 1 :])

    return state.with_shapes(cut(state.used), cut(state.allocated))
