"""What a file is, without its weights: versions, inputs, outputs, caches, and what its tensors weigh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx

from archc_exporters.onnx.placement.element_types import all_graphs, opsets, type_name
from archc_exporters.onnx.states import PAST, present_name, tokens_a_row

BITS = {"double": 64, "float": 32, "int64": 64, "uint64": 64, "int32": 32, "uint32": 32, "int4": 4, "uint4": 4}
"""Bits of an element; 16 for every other type that ends in 16, 8 for the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An input or output: name, element type and shape."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A cache: its input, the output that replaces it (None where there is none), type and shape.

    Attributes:
        bytes_per_token: bytes a sequence and a token of the dimension that grows, rounded down where a row comes every few
            tokens; 0 where none but the first has a name.
        bytes_per_sequence: bytes a sequence where no dimension grows, else 0.
    """

    name: str
    output: str | None
    dtype: str
    shape: tuple[int | str, ...]
    bytes_per_token: int
    bytes_per_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A file's outline.

    Attributes:
        files: external data -> bytes; None where the file is missing.
    """

    file: str
    ir_version: int
    opsets: dict[str, int]
    producer: str
    nodes: int
    weight_bytes: int
    files: dict[str, int | None]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    caches: tuple[Cache, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        return asdict(self)


def summary(model: onnx.ModelProto, path: Path) -> Summary:
    """The outline of a model that was read from ``path``."""
    graph = model.graph
    weights = [tensor for part in all_graphs(graph) for tensor in part.initializer]
    stored = {tensor.name for tensor in graph.initializer}
    inputs, outputs = _tensors(v for v in graph.input if v.name not in stored), _tensors(graph.output)
    made = {tensor.name for tensor in outputs}
    caches = tuple(_cache(tensor, made) for tensor in inputs if tensor.name.startswith(PAST))
    taken = {name for cache in caches for name in (cache.name, cache.output)}
    return Summary(
        file=str(path),
        ir_version=model.ir_version,
        opsets={domain or "ai.onnx": version for domain, version in opsets(model).items()},
        producer=" ".join(part for part in (model.producer_name, model.producer_version) if part),
        nodes=sum(len(part.node) for part in all_graphs(graph)),
        weight_bytes=sum(prod(t.dims) * bits(type_name(t.data_type)) // 8 for t in weights),
        files={name: _size(path.parent / name) for name in _external(weights)},
        inputs=tuple(tensor for tensor in inputs if tensor.name not in taken),
        outputs=tuple(tensor for tensor in outputs if tensor.name not in taken),
        caches=caches,
    )


def bits(dtype: str) -> int:
    """Bits of an element."""
    return BITS.get(dtype, 16 if dtype.endswith("16") else 8)


def external_files(model: onnx.ModelProto) -> list[str]:
    """Names of the files that hold a model's external data."""
    return _external(tensor for graph in all_graphs(model.graph) for tensor in graph.initializer)


def _external(tensors: Iterable[onnx.TensorProto]) -> list[str]:
    return sorted({e.value for tensor in tensors for e in tensor.external_data if e.key == "location"})


def _tensors(values: Iterable[onnx.ValueInfoProto]) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for value in values:
        kind = value.type.tensor_type
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim)
        found.append(Tensor(name=value.name, dtype=type_name(kind.elem_type) if kind.elem_type else "", shape=shape))
    return tuple(found)


def _cache(tensor: Tensor, outputs: set[str]) -> Cache:
    output = present_name(tensor.name)
    size = prod(dim for dim in tensor.shape if isinstance(dim, int)) * bits(tensor.dtype) // 8
    names = [dim for dim in tensor.shape[1:] if isinstance(dim, str)]
    grows = bool(names)
    return Cache(
        name=tensor.name,
        output=output if output in outputs else None,
        dtype=tensor.dtype,
        shape=tensor.shape,
        bytes_per_token=size // (tokens_a_row(names[0]) or 1) if grows else 0,
        bytes_per_sequence=0 if grows else size,
    )


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
