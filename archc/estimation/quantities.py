"""Where a number comes from: quantities of an estimate with their units, formulas, and the tensors or ops that add up to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archc.errors import ArchcError
from archc.estimation.activations import measure_activations
from archc.estimation.cache import CacheKind, add_state, bytes_formula
from archc.estimation.flops import FORMS, PAIRS, FlopsSums
from archc.estimation.parameters import distinct_weights
from archc.estimation.placed import Placed
from archc.graph.graph import join, resolve_dtype
from archc.ir.size import exact_quotient, simplify
from archc.ir.tape import RECOMPUTE, Recompute
from archc.ir.values import Param, State
from archc.spec.near import listed, nearest
from archc.units import DTYPE_BITS, tensor_bytes

if TYPE_CHECKING:
    from archc.estimation.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor or op that a quantity counts, in ``count`` equal layers: ``value`` is of all of them together.

    ``path`` is the first one's name: of a weight as in ``state_dict()``, of a state as in the cache, of an op its leaf.
    ``op`` is the op's name, ``part`` the part of the model, ``layer`` the layer kind, empty outside the layers.
    """

    path: str
    op: str
    part: str
    layer: str
    count: int
    value: int
    formula: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "path": self.path,
            "op": self.op,
            "part": self.part,
            "layer": self.layer,
            "count": self.count,
            "value": self.value,
            "formula": self.formula,
        }


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit, its formula, what it means, and its sources, the largest first: their values add up to it."""

    name: str
    value: int
    unit: str
    formula: str
    meaning: str
    sources: tuple[Source, ...]

    def __int__(self) -> int:
        return self.value

    def by_part(self) -> dict[str, int]:
        """Sums over the parts of the model, the largest first."""
        return self._sums(lambda source: source.part)

    def by_layer(self) -> dict[str, int]:
        """Sums over layer kinds, the largest first; what stands outside the layers has the empty name."""
        return self._sums(lambda source: source.layer)

    def _sums(self, key: Callable[[Source], str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for source in self.sources:
            found[key(source)] = found.get(key(source), 0) + source.value
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "formula": self.formula,
            "meaning": self.meaning,
            "by_part": self.by_part(),
            "sources": [source.to_json() for source in self.sources],
        }


_WEIGHTS: dict[str, tuple[str, str]] = {
    "parameters.total": ("parameters", "trainable elements, a tied weight once"),
    "parameters.active": ("parameters", "those that one token uses: without routed experts that it does not visit"),
    "parameters.embedding": ("parameters", "those before the first layer"),
    "parameters.non_embedding": ("parameters", "all but those before the first layer"),
    "parameters.untrainable": ("elements", "saved buffers, which no optimizer moves"),
    "weights.bytes": ("bytes", "every weight and saved buffer as stored"),
}
_CACHE: dict[str, tuple[str, str]] = {
    "cache.bytes_per_token": ("bytes per token and sequence", "growth once every window is full"),
    "cache.bytes_per_token_below_windows": ("bytes per token and sequence", "growth while every window fills"),
    "cache.bytes_per_source_token": ("bytes per token and sequence", "what a token of the encoder takes"),
    "cache.recurrent_bytes_per_sequence": ("bytes per sequence", "recurrent states, whatever the length"),
    "cache.convolution_bytes_per_sequence": ("bytes per sequence", "the last columns of short convolutions"),
    "cache.used_bytes": ("bytes", "what the formula needs for the whole length and batch"),
    "cache.allocated_bytes": ("bytes", "tensors that torch and the ONNX inputs hold"),
    "cache.paged_bytes": ("bytes", "tokens in whole blocks for each sequence and layer"),
}
_FLOPS: dict[str, str] = {
    "forward": "a bidirectional stack over the whole batch",
    "prefill": "all tokens of the batch from an empty cache, the head for the last",
    "decode": "one token of each sequence after all others",
    "train_step": "forward and backward of the batch, nothing recomputed",
}


_ACTIVATIONS: dict[str, str] = {
    "none": "all that autograd keeps of a training forward of the batch, on a GPU",
    "selective": "of each layer its inputs and what matrix work wrote; backward makes the rest again",
    "full": "of each layer its inputs; backward runs its forward again",
}


def quantity_names(found: Estimate) -> list[str]:
    """Names of all quantities of an estimate."""
    steps = (f"flops.{step}" for step in found.flops.numbers)
    return [*_WEIGHTS, *_CACHE, *steps, *(f"activations.{mode}" for mode in RECOMPUTE)]


def explain(found: Estimate, name: str) -> Quantity:
    """One quantity of an estimate.

    Raises:
        ArchcError: there is none of that name.
    """
    names = quantity_names(found)
    if name not in names:
        meant = nearest(name, names)
        hint = f"Did you mean {meant}?" if meant else f"Known: {listed(names)}."
        raise ArchcError(f"there is no quantity {name!r} in this estimate. {hint}")
    section, _, field = name.partition(".")
    if section == "activations":
        return _activations(found, name)
    if section == "flops":
        step = field.removesuffix("_dense")
        pairs = "whole rectangles of pairs" if field.endswith("_dense") else "pairs that the mask lets through"
        unit, meaning = "FLOPs", f"{_FLOPS[step]}; {pairs}"
        sources, formula = _flops_sources(found, field), str(found.flops.formulas[field])
    else:
        unit, meaning = (_CACHE if section == "cache" else _WEIGHTS)[name]
        sources = _cache_sources(found, field) if section == "cache" else _weight_sources(found, name)
        formula = found.cache.formula if name == "cache.used_bytes" else _summed(sources)
    kept = sorted((source for source in sources if source.value), key=lambda source: -source.value)
    return Quantity(name, sum(source.value for source in kept), unit, formula, meaning, tuple(kept))


def _activations(found: Estimate, name: str) -> Quantity:
    """Storages that a training forward keeps; what can't say its own is named in the meaning."""
    mode: Recompute = next(mode for mode in RECOMPUTE if name.endswith(f".{mode}"))
    kept = measure_activations(
        found.graph,
        batch_size=found.batch_size,
        seq_len=found.cache_options.max_model_len,
        source_len=found.source_len,
        dtype=found.dtype,
        recompute=mode,
    )
    first = {call.body.label: call.name for call in reversed([*found.graph.root.calls()])}
    ops = {path: node.op.op_name for path, node in found.graph.walk()}
    sources: list[Source] = []
    for piece in kept.pieces:
        layers = found.layers.get(piece.layer, 1)
        if piece.count % layers:
            # The last layer's output is no layer's input.
            layers = piece.count
        # What a layer keeps may have been made before it.
        is_inside = piece.layer in found.layers and piece.origin not in ops
        path = join(first[piece.layer], piece.origin) if is_inside else piece.origin or "inputs"
        one = exact_quotient(piece.bytes, layers)
        count, formula = (1, piece.bytes) if one is None else (layers, one)
        part = ".".join(path.removeprefix(f"{first.get(piece.layer)}.").split(".")[:1])
        layer = piece.layer if piece.layer in found.layers else ""
        op = ops.get(path, path.rpartition(".")[2])
        sources.append(Source(path, op, part, layer, count, kept.value(piece), str(formula)))
    meaning = _ACTIVATIONS[mode]
    if kept.left_out:
        meaning += f"; left out, since they can't say theirs: {listed(sorted({op for _, op in kept.left_out}))}"
    ordered = tuple(sorted((source for source in sources if source.value), key=lambda source: -source.value))
    return Quantity(name, kept.bytes, "bytes", str(kept.formula), meaning, ordered)


def _summed(sources: list[Source]) -> str:
    return " + ".join(
        source.formula if source.count == 1 else f"{source.count} x ({source.formula})"
        for source in sources
        if source.value
    )


def _weight_sources(found: Estimate, name: str) -> list[Source]:
    sources: list[Source] = []
    for placed, role, param in distinct_weights(found.placement):
        value, formula = _weight_value(found, name, placed, role, param)
        path = join(placed.scope, param.name)
        sources.append(_source(placed, path, value * placed.count, formula))
    return sources


def _weight_value(found: Estimate, name: str, placed: Placed, role: str, param: Param) -> tuple[int, str]:
    shape = " x ".join(map(str, param.shape))
    if name == "weights.bytes":
        dtype = resolve_dtype(param.dtype, found.dtype)
        return tensor_bytes(param.elements, dtype), f"{shape} x {DTYPE_BITS[dtype] / 8:g} B"
    is_embedding = placed.part[0] == "embedding"
    wanted = {
        "parameters.embedding": param.trainable and is_embedding,
        "parameters.non_embedding": param.trainable and not is_embedding,
        "parameters.untrainable": not param.trainable,
    }.get(name, param.trainable)
    if not wanted:
        return 0, ""
    if name != "parameters.active":
        return param.elements, shape
    active = placed.node.op.active_elements(role, param)
    return active, shape if active == param.elements else f"{active} of {shape}"


def _cache_sources(found: Estimate, field: str) -> list[Source]:
    sources: list[Source] = []
    for placed, state in _states(found):
        kind = CacheKind("", placed.part, placed.count)
        policy = found.graph.policies.get(placed.part[:2][-1], ("", None))
        add_state(kind, found.graph, placed, state, found.cache_options, found.cache_options.block_tokens(policy[1]))
        formula = _state_formula(found, field, placed, state, getattr(kind, field))
        sources.append(_source(placed, join(placed.scope, state.name), getattr(kind, field), formula))
    return sources


def _state_formula(found: Estimate, field: str, placed: Placed, state: State, value: int) -> str:
    dtype = found.cache_options.state_dtype(state)
    if field == "used_bytes":
        return str(simplify(bytes_formula(state, DTYPE_BITS[dtype])))
    if field == "allocated_bytes":
        lengths = {"max_model_len": found.cache_options.max_model_len, "source_len": found.cache_options.source_len}
        shape = found.graph.state_shape(state, batch=found.batch_size, **lengths)
        return f"{' x '.join(map(str, shape))} x {DTYPE_BITS[dtype] / 8:g} B"
    return f"{value // placed.count} B"


def _states(found: Estimate) -> Iterator[tuple[Placed, State]]:
    for placed in found.placement.nodes:
        for state in placed.node.states.values():
            yield placed, state


def _flops_sources(found: Estimate, field: str) -> list[Source]:
    step = field.removesuffix("_dense")
    pairs = PAIRS[field.endswith("_dense")]
    decodes = found.graph.mask != "bidirectional"
    sources: list[Source] = []
    for placed in found.placement.nodes:
        types = [value.type for value in placed.node.inputs]
        sums = FlopsSums(decodes=decodes)
        for form in FORMS:
            sums.add(placed, form, placed.node.op.flops(types, form, pairs))
        options = found.cache_options
        numbers = sums.numbers(batch=found.batch_size, length=options.max_model_len, source=options.source_len)
        path = join(placed.scope, placed.node.name)
        sources.append(_source(placed, path, numbers[step] * placed.count, str(sums.formulas()[step])))
    return sources


def _source(placed: Placed, path: str, value: int, formula: str) -> Source:
    return Source(path, placed.node.op.op_name, ".".join(placed.part), placed.layer, placed.count, value, formula)
