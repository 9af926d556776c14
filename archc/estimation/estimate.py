"""What a model costs at one batch and one length: the whole of ``archc estimate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from archc.errors import ArchcError
from archc.estimation.cache import Cache, CacheOptions, measure_cache
from archc.estimation.conventions import CONVENTIONS
from archc.estimation.flops import Flops, count_flops
from archc.estimation.parameters import Parameters, Weights, count_parameters, count_weight_bytes
from archc.estimation.placed import Placement, place
from archc.expansion import Source, as_graph
from archc.graph.graph import Graph
from archc.units import DTYPE_BITS, dtype_name

if TYPE_CHECKING:
    from archc.estimation.quantities import Quantity

DEFAULT_LENGTH_TOKENS = 4096
"""Length of an estimate when neither the caller nor the spec states one."""


@dataclass(slots=True)
class Estimate:
    """All costs of a model, with the options that they hold for. Names of quantities end in their unit.

    ``explain`` says where a number comes from.

    ``kv_cache_dtype`` and ``block_size_tokens`` are None where the spec's cache policies hold, ``source_len``, in tokens, where
    no encoder is read.
    """

    name: str
    dtype: str
    kv_cache_dtype: str | None
    batch_size: int
    max_model_len: int
    source_len: int | None
    block_size_tokens: int | None
    layers: dict[str, int]
    parameters: Parameters
    weights: Weights
    cache: Cache
    flops: Flops
    graph: Graph = field(repr=False, compare=False)
    placement: Placement = field(repr=False, compare=False)
    cache_options: CacheOptions = field(repr=False, compare=False)

    def quantities(self) -> list[str]:
        """Names of all quantities that ``explain`` knows: ``cache.used_bytes``, ``flops.decode``, …"""
        from archc.estimation.quantities import quantity_names

        return quantity_names(self)

    def explain(self, name: str) -> Quantity:
        """A quantity with its unit, its formula, and every tensor or op that it is the sum of.

        Raises:
            ArchcError: there is none of that name.
        """
        from archc.estimation.quantities import explain

        return explain(self, name)

    def to_json(self) -> dict[str, Any]:
        """Plain data; every number is an integer, and an option that is not stated is None."""
        return {
            "name": self.name,
            "options": {
                "dtype": self.dtype,
                "kv_cache_dtype": self.kv_cache_dtype,
                "batch_size": self.batch_size,
                "max_model_len": self.max_model_len,
                "source_len": self.source_len,
                "block_size": self.block_size_tokens,
            },
            "parameters": self.parameters.to_json(),
            "weights": self.weights.to_json(),
            "cache": self.cache.to_json(),
            "flops": self.flops.to_json(),
            "layers": self._layers(),
            "conventions": CONVENTIONS,
        }

    def _layers(self) -> list[dict[str, Any]]:
        """One entry a layer kind, in order of first use."""
        rows: list[dict[str, Any]] = []
        for label, count in self.layers.items():
            cache = self.cache.by_layer[label]
            rows.append(
                {
                    "name": label,
                    "layers": count,
                    "parameters": self.parameters.by_layer.get(label, 0),
                    "active_parameters": self.parameters.active_by_layer.get(label, 0),
                    "bytes_per_token": cache.bytes_per_token,
                    "bytes_per_token_below_windows": cache.bytes_per_token_below_windows,
                    "bytes_per_source_token": cache.bytes_per_source_token,
                    "window_tokens": cache.window,
                    "state_bytes_per_sequence": cache.recurrent_bytes_per_sequence
                    + cache.convolution_bytes_per_sequence,
                    "used_bytes": cache.used_bytes,
                    "flops": self.flops.by_layer.get(label, {}),
                }
            )
        return rows


def length_of(graph: Graph, stated: int | None) -> int:
    """Tokens of a sequence: those stated, else those that the model is made for, else 4,096."""
    return stated if stated is not None else graph.max_position_embeddings or DEFAULT_LENGTH_TOKENS


def estimate(
    spec_or_graph: Source,
    *,
    batch_size: int = 1,
    max_model_len: int | None = None,
    source_len: int | None = None,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
    block_size: int | None = None,
) -> Estimate:
    """Parameters, weight bytes, cache bytes and FLOPs of a spec, a graph, a file or a shipped name.

    ``max_model_len`` tokens default to the spec's ``max_position_embeddings``; ``source_len`` are those of the encoder that a
    decoder reads, by default as many; ``dtype`` and ``kv_cache_dtype`` may be
    short (``bf16``); ``block_size``, in tokens, overrides what cache policies say.

    Raises:
        ArchcError: the spec has problems, an option is no dtype or not positive, or there is no encoder to read.
    """
    graph = as_graph(spec_or_graph)
    length = length_of(graph, max_model_len)
    positive = {"batch_size": batch_size, "max_model_len": length, "source_len": source_len, "block_size": block_size}
    for name, value in positive.items():
        if value is not None and value < 1:
            raise ArchcError(f"{name} should be at least 1 (found {value})")
    if source_len is not None and not graph.reads_encoder:
        raise ArchcError(f"source_len: {graph.name} has no encoder that a decoder reads")
    source = source_len or length
    model_dtype = graph.dtype if dtype is None else _dtype("dtype", dtype)
    kv_dtype = None if kv_cache_dtype is None else _dtype("kv_cache_dtype", kv_cache_dtype)
    placement = place(graph)
    parameters = count_parameters(placement)
    weights = count_weight_bytes(placement, model_dtype)
    if graph.mtp is not None:
        extra = place(graph.mtp)
        parameters.mtp = count_parameters(extra).total
        weights.mtp_bytes = count_weight_bytes(extra, model_dtype).bytes
    options = CacheOptions(model_dtype, kv_dtype, batch_size, length, source, block_size)
    return Estimate(
        name=graph.name,
        dtype=model_dtype,
        kv_cache_dtype=kv_dtype,
        batch_size=batch_size,
        max_model_len=length,
        source_len=source if graph.reads_encoder else None,
        block_size_tokens=block_size,
        layers=placement.layers,
        parameters=parameters,
        weights=weights,
        cache=measure_cache(graph, placement, options),
        flops=count_flops(
            placement,
            batch_size=batch_size,
            max_model_len=length,
            source_len=source,
            decodes=graph.mask != "bidirectional",
        ),
        graph=graph,
        placement=placement,
        cache_options=options,
    )


def _dtype(option: str, text: str) -> str:
    name = dtype_name(text)
    if name not in DTYPE_BITS:
        raise ArchcError(f"{option} {text!r} is unknown; known: {', '.join(DTYPE_BITS)}")
    return name
