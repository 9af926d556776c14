"""Saved activations of one micro-batch on one rank: those of the graph, cut by tensor, sequence and context parallelism.

* cp: every rank runs ``ceil(seq / cp)`` tokens.
* tp: what has a logical axis (heads, feed-forward channels) is cut along it. With sequence parallelism (arXiv 2205.05198) the
  rest is cut along the tokens; what a product reads is gathered again in backward, as Megatron-LM does. Without, every rank
  keeps it.
* ep: a rank runs as many rows of its experts as its own tokens choose experts, wherever those lie: routing is taken to be even.
* pp: a stage keeps its own layers'; tables and masks, which layers share, stand on each stage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from archc.estimation.activations import OUTSIDE, SHARED, Activations, Piece, measure_activations
from archc.graph.graph import LAYER, Graph, join, resolve_dtype
from archc.ir.size import Dim, ceil_div, evaluate, product
from archc.ir.tape import Device, Recompute, Storage
from archc.ir.values import Call, Node, Value
from archc.planning.sharding import Parallel, Stage
from archc.planning.stages import Item, StageItems, is_stream, split_into_stages


@dataclass(slots=True)
class StageActivations:
    """Bytes that one stage keeps of one micro-batch.

    ``working``: what backward makes again of one layer, the largest; ``gradients``: of activations, at most, while one op's
    backward runs.
    """

    by_layer: dict[str, int] = field(default_factory=dict[str, int])
    working: int = 0
    gradients: int = 0


class KeptByStages:
    """What each stage keeps, for any size of a micro-batch. ``stages`` may be more than ``pp``, interleaved.

    ``seq_len`` and ``source_len`` are tokens of a sequence before cp cuts them; ``left_out`` are the ops that can't say, (path,
    name). ``is_trunk``: without what stands behind the last layer.
    """

    def __init__(
        self,
        graph: Graph,
        stages: list[Stage],
        parallel: Parallel,
        *,
        seq_len: int,
        source_len: int | None,
        dtype: str,
        recompute: Recompute,
        sequence_parallel: bool,
        kernels: Device = "cuda",
        is_trunk: bool = False,
    ) -> None:
        self.stages = stages
        self.cuts = [_Cut(stage, parallel, sequence_parallel) for stage in stages]
        self.places = _Places(graph, len(stages))
        self.layers = {call.name: call.body.label for call in graph.root.calls() if LAYER.match(call.name)}
        self.totals = Counter(self.layers.values())
        tables = {value for node in shared_tables(graph) for value in node.outputs}
        self.streams = {
            call.name: Piece(call.name, "", None, 1, _stream_bytes(call, tables, dtype))
            for call in graph.root.calls()
            if LAYER.match(call.name)
        }

        @cache
        def measured(mode: Recompute, batch_size: int) -> Activations:
            return measure_activations(
                graph,
                batch_size=batch_size,
                seq_len=-(-seq_len // parallel.cp),
                source_len=None if source_len is None else -(-source_len // parallel.cp),
                dtype=dtype,
                recompute=mode,
                device=kernels,
                is_trunk=is_trunk,
            )

        self._measured, self.recompute = measured, recompute
        self._choose(1)
        self.left_out = self.kept.left_out

    def _choose(self, batch_size: int) -> None:
        """Bytes are polynomials of the batch: a replay of one sequence serves one, a replay of two serves every more.

        Some products take heads of one sequence as they lie and copy those of several.
        """
        replayed = min(batch_size, 2)
        self.kept = self._measured(self.recompute, replayed)
        self.whole = self._measured("none", replayed)

    def at(self, batch_size: int) -> list[StageActivations]:
        """Each stage's bytes of a micro-batch of so many sequences."""
        self._choose(batch_size)
        sizes = {**self.kept.sizes, "batch": batch_size}
        return [self._stage(stage, cut, sizes) for stage, cut in zip(self.stages, self.cuts, strict=True)]

    def _stage(self, stage: Stage, cut: _Cut, sizes: dict[str, int]) -> StageActivations:
        here = Counter(self.layers[name] for name in stage.layers)
        found = StageActivations()
        again: dict[str, int] = {}
        for piece in self.kept.pieces:
            count_bytes = cut.bytes(piece, sizes)
            again[piece.layer] = again.get(piece.layer, 0) - count_bytes
            if self.places.is_on_every_stage(piece):
                share = count_bytes if piece.layer == SHARED or here[piece.layer] else 0
            elif piece.layer in self.totals:
                share = count_bytes * here[piece.layer] // self.totals[piece.layer]
            else:
                share = count_bytes if self.places.stage_of(piece) == stage.index else 0
            if share:
                found.by_layer[piece.layer] = found.by_layer.get(piece.layer, 0) + share
        if self.whole is not self.kept:
            for piece in self.whole.pieces:
                again[piece.layer] = again.get(piece.layer, 0) + cut.bytes(piece, sizes)
            # A layer that keeps less than its inputs has nothing to make again.
            found.working = max([0, *(again.get(name, 0) // self.totals[name] for name in here)])
        found.gradients = self._gradients(stage, cut, sizes)
        return found

    def _gradients(self, stage: Stage, cut: _Cut, sizes: dict[str, int]) -> int:
        """A gradient is as large as its tensor. The stream's is there all the time, and beside it those of one op.

        Inside a layer an op has two operands at most as large as the layer's largest tensor; of what stands behind the layers,
        the norm, all that it keeps has one.
        """
        streams = (cut.bytes(self.streams[name], sizes) for name in stage.layers)
        here = Counter(self.layers[name] for name in stage.layers)
        largest = [0]
        for piece in self.whole.pieces:
            if here[piece.layer]:
                largest.append(2 * cut.bytes(piece, sizes) // piece.count)
            elif piece.layer == OUTSIDE and piece.origin and self.places.stage_of(piece) == stage.index:
                largest.append(cut.bytes(piece, sizes))
        return max(streams, default=0) + max(largest)


class _Cut:
    """How many ranks share a kept tensor on one stage."""

    def __init__(self, stage: Stage, parallel: Parallel, sequence_parallel: bool) -> None:
        self.tp, self.sequence_parallel = parallel.tp, sequence_parallel
        self.heads: dict[str, int] = {}
        for param in stage.params:
            for dim, axis in enumerate(param.param.axes):
                if axis == "kv_heads":
                    ways = param.cuts[dim][1] if dim in param.cuts else 1
                    self.heads[param.layer] = min(ways, self.heads.get(param.layer, ways))

    def bytes(self, piece: Piece, sizes: dict[str, int]) -> int:
        """One rank's part, rounded up."""
        if self.tp == 1:
            return evaluate(piece.bytes, sizes)
        if piece.axis is None or piece.axis == "experts":
            has_tokens = any(name in str(piece.bytes) for name in ("seq", "source", "memory"))
            ways = self.tp if self.sequence_parallel and has_tokens else 1
        else:
            ways = self.heads.get(piece.layer, self.tp) if piece.axis == "kv_heads" else self.tp
        return evaluate(ceil_div(piece.bytes, ways), sizes)


class _Places:
    """Which stage keeps what no layer makes."""

    def __init__(self, graph: Graph, stages: int) -> None:
        self.last = stages - 1
        self.stages: dict[str, int] = {}
        for index, items in enumerate(split_into_stages(graph, stages).stages):
            self._place(index, items)
        self.tables = {_origin(item) for item in shared_tables(graph)}

    def _place(self, index: int, items: StageItems) -> None:
        for item in (*items.before, *items.behind):
            for name in _origins(item):
                # A name that two stages have (a norm before and behind) is the later one's: it has the wider tensors.
                self.stages[name] = index

    def is_on_every_stage(self, piece: Piece) -> bool:
        return piece.layer == SHARED or (piece.layer != OUTSIDE and piece.origin in self.tables)

    def stage_of(self, piece: Piece) -> int:
        """Inputs of the model, ids, stand on the first stage."""
        return self.stages.get(piece.origin, self.last if piece.origin else 0)


def shared_tables(graph: Graph) -> list[Node]:
    """What all layers read and none is given a gradient of, or one by distance: rotations, biases, masks."""
    given = set(graph.inputs.values())
    return [
        node
        for node in graph.root.nodes()
        if not any(is_stream(value) for value in node.outputs) or (not node.params and given.issuperset(node.inputs))
    ]


def _stream_bytes(call: Call, tables: set[Value], dtype: str) -> Dim:
    """What a layer is given of each token: its streams, and what earlier layers hand on."""
    total: Dim = 0
    for value in call.inputs:
        if is_stream(value) and value not in tables:
            total = total + Storage(product(value.shape), resolve_dtype(value.dtype, dtype)).bytes
    return total


def _origin(node: Node) -> str:
    return node.name or node.op.op_name


def _origins(item: Item) -> list[str]:
    if isinstance(item, Node):
        return [_origin(item)]
    return _inner_origins(item, "")


def _inner_origins(call: Call, path: str) -> list[str]:
    found: list[str] = []
    for item in call.body.items:
        if isinstance(item, Node):
            found.append(join(path, item.name) or item.op.op_name)
        else:
            found += _inner_origins(item, join(path, item.name))
    return found
