"""Parameters, gradients and optimizer states of one rank, to the byte: tp, pp and ep cut them, ZeRO cuts them again.

ZeRO (arXiv 1910.02054) as FSDP2 does it: each tensor is cut along its first dimension into ``ceil(rows / ranks)`` rows; the last
ranks hold fewer and pad. What is counted is the first rank, which holds the most.

* 1 cuts optimizer states and master weights, 2 gradients as well, 3 parameters as well.
* Under 3 the pieces are what the optimizer moves: with master weights those are the pieces, in float32, and parameters in the
  model's dtype exist only while they are gathered (FSDP2 with a ``MixedPrecisionPolicy``).
* Routed experts under ep are cut over the ranks that hold the same experts, all others over dp x cp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from archc.graph.graph import resolve_dtype
from archc.ir.values import Param
from archc.planning.sharding import Parallel, ShardedParam, Stage
from archc.planning.training.optimizers import Moved, Optimizer
from archc.units import DTYPE_BITS, tensor_bytes

MASTER_DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class WeightOptions:
    """How weights are held. ``grad_dtype`` None: that of what a gradient belongs to, under ZeRO-3 that of the pieces."""

    dtype: str
    optimizer: Optimizer
    has_masters: bool
    grad_dtype: str | None
    zero: int

    def param_dtype(self, piece: ShardedParam) -> str:
        return resolve_dtype(piece.param.dtype, self.dtype)

    def has_master(self, piece: ShardedParam) -> bool:
        """Whether the optimizer moves a float32 copy: only of what is narrower."""
        return self.has_masters and DTYPE_BITS[self.param_dtype(piece)] < DTYPE_BITS[MASTER_DTYPE]

    def moved_dtype(self, piece: ShardedParam) -> str:
        return MASTER_DTYPE if self.has_master(piece) else self.param_dtype(piece)

    def gradient_dtype(self, piece: ShardedParam) -> str:
        if self.grad_dtype is not None:
            return self.grad_dtype
        return self.moved_dtype(piece) if self.zero == 3 else self.param_dtype(piece)


@dataclass(slots=True)
class WeightBytes:
    """Bytes of one rank. ``gathered`` and ``gradients_in_flight`` come and go while layers run; ``host`` is no device memory."""

    parameters: int = 0
    buffers: int = 0
    masters: int = 0
    gradients: int = 0
    optimizer: int = 0
    gathered: int = 0
    gradients_in_flight: int = 0
    host: int = 0
    elements: int = 0
    by_layer: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def resident(self) -> int:
        """What lies there all the time."""
        return self.parameters + self.buffers + self.masters + self.gradients + self.optimizer


def zero_rows(rows: int, ranks: int, rank: int = 0) -> int:
    """Rows that a rank holds of so many: FSDP2's chunks."""
    chunk = -(-rows // ranks)
    return max(0, min(chunk, rows - rank * chunk))


def zero_ranks(piece: ShardedParam, parallel: Parallel) -> int:
    """Ranks over which ZeRO cuts a weight."""
    if piece.is_expert and parallel.ep > 1:
        return parallel.stage_ranks // parallel.ep
    return parallel.dp * parallel.cp


def cut_by_zero(shape: tuple[int, ...], ranks: int, rank: int = 0) -> tuple[int, ...]:
    """The piece of a local shape; a scalar stands on the first rank."""
    if not shape:
        return shape
    return (zero_rows(shape[0], ranks, rank), *shape[1:])


def is_matrix(param: Param, *, in_layer: bool) -> bool:
    """A product's weight inside a layer: by how it is drawn, not by its name. Stacks of matrices are several."""
    return in_layer and len(param.shape) > 1 and param.init == "normal" and "vocab" not in param.axes


def weight_bytes(stages: list[Stage], parallel: Parallel, options: WeightOptions, *, rank: int = 0) -> WeightBytes:
    """What a rank of these stages holds; several are those of an interleaved schedule. ``rank`` is that among ZeRO's."""
    found = WeightBytes()
    seen: set[tuple[str, ...]] = set()
    for stage in stages:
        for piece in stage.params:
            # A tied table, or one that several of a rank's stages read.
            if piece.layer or piece.names not in seen:
                seen.add(piece.names)
                _add(found, piece, parallel, options, rank)
    found.optimizer += options.optimizer.shared_bytes
    if options.zero >= 2:
        layers = list(_layer_bytes(stages, options.param_dtype))
        outside = _outside_bytes(stages, options.param_dtype)
        # One layer's gradients, and those of the layer behind it on their way to be shared out.
        on_their_way = [
            *_layer_bytes(stages, options.gradient_dtype),
            _outside_bytes(stages, options.gradient_dtype),
        ]
        found.gradients_in_flight = max(layers, default=0) + max(on_their_way)
        if options.zero == 3:
            # FSDP2 gathers the next layer while this one runs, and keeps what stands outside of layers.
            pairs = [a + b for a, b in pairwise(layers)] or layers
            found.gathered = max(pairs, default=0) + outside
    return found


def _add(found: WeightBytes, piece: ShardedParam, parallel: Parallel, options: WeightOptions, rank: int) -> None:
    dtype, count = options.param_dtype(piece), piece.count
    if not piece.param.trainable:
        found.buffers += tensor_bytes(piece.elements, dtype) * count
        return
    ranks = zero_ranks(piece, parallel)
    cut = cut_by_zero(piece.shape, ranks, rank)
    has_master = options.has_master(piece)
    moved = Moved(
        cut if options.zero else piece.shape,
        options.moved_dtype(piece),
        is_matrix(piece.param, in_layer=bool(piece.layer)),
        piece.param.shape,
    )
    parameters = 0
    if options.zero < 3:
        parameters = tensor_bytes(piece.elements, dtype) * count
    elif not has_master:
        parameters = tensor_bytes(moved.elements, dtype) * count
    found.elements += piece.elements * count
    found.parameters += parameters
    found.masters += tensor_bytes(moved.elements, MASTER_DTYPE) * count if has_master else 0
    with_gradient = moved.elements if options.zero >= 2 else piece.elements
    found.gradients += tensor_bytes(with_gradient, options.gradient_dtype(piece)) * count
    for kept in options.optimizer.keeps(moved):
        if kept.on_host:
            found.host += kept.bytes * count
        else:
            found.optimizer += kept.bytes * count
    layer = piece.layer or "outside layers"
    found.by_layer[layer] = found.by_layer.get(layer, 0) + parameters


def _whole_bytes(piece: ShardedParam, dtype: Callable[[ShardedParam], str]) -> int:
    """A weight that is trained, or its gradient, before it is cut by ZeRO."""
    return tensor_bytes(piece.elements, dtype(piece)) if piece.param.trainable else 0


def _outside_bytes(stages: list[Stage], dtype: Callable[[ShardedParam], str]) -> int:
    return sum(_whole_bytes(piece, dtype) for stage in stages for piece in stage.params if not piece.layer)


def _layer_bytes(stages: list[Stage], dtype: Callable[[ShardedParam], str]) -> Iterator[int]:
    """Bytes of each layer's whole weights, in order."""
    for stage in stages:
        sizes = dict.fromkeys(stage.layers, 0)
        for piece in stage.params:
            for prefix in piece.prefixes:
                if prefix:
                    sizes[prefix] += _whole_bytes(piece, dtype)
        yield from sizes.values()
