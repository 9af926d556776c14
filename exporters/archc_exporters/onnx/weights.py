"""Where weights come from, one tensor at a time: random numbers or safetensors files. Torch is never imported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnx_ir as ir
from safetensors import SafetensorError, safe_open

from archc.errors import ArchcError
from archc.ir.values import MODEL_DTYPE, Param

Array = np.ndarray[Any, Any]
Transform = Callable[..., Array]
"""A pure function of the source arrays, in the order of their names."""

DTYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int64": ir.DataType.INT64,
    "int32": ir.DataType.INT32,
    "bool": ir.DataType.BOOL,
}
NUMPY_DTYPES: dict[ir.DataType, np.dtype[Any]] = {
    ir.DataType.FLOAT: np.dtype(np.float32),
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    ir.DataType.INT64: np.dtype(np.int64),
    ir.DataType.INT32: np.dtype(np.int32),
    ir.DataType.BOOL: np.dtype(np.bool_),
}
_FLOATS = ("F64", "F32", "F16", "BF16")
_NORMAL_STD = 0.02
_BLOCK_ELEMENTS = 1 << 24
_TILE = 512
_FLOAT16_INFINITY = 0x7C00


class WeightSource(Protocol):
    """Reads one parameter when it is needed, in whatever floating dtype it is stored."""

    def read(self, name: str, param: Param) -> Array: ...


class RandomWeights:
    """Numbers seeded by parameter name, so that one weight does not depend on which others are drawn."""

    def __init__(self, seed: int, dtype: ir.DataType) -> None:
        self._seed, self._dtype = seed, NUMPY_DTYPES[dtype]

    def read(self, name: str, param: Param) -> Array:
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        out = np.empty(param.elements, self._dtype if param.dtype == MODEL_DTYPE else np.float32)
        # In blocks, so that a 16-bit tensor of many gigabytes never exists in float32.
        for start in range(0, out.size, _BLOCK_ELEMENTS):
            block = out[start : start + _BLOCK_ELEMENTS]
            block[...] = _draw(rng, param, block.size)
        return out.reshape(param.shape)


def _draw(rng: np.random.Generator, param: Param, count: int) -> Array:
    match param.init:
        case "zeros":
            return np.zeros(count, np.float32)
        case "ones":
            return np.ones(count, np.float32)
        case "conv":
            return rng.uniform(-1, 1, count) * param.shape[-1] ** -0.5
        case "a_log":
            return np.log(rng.uniform(1, 16, count))
        case "dt_bias":
            # softplus(dt_bias) is spread over [1e-3, 0.1] in the logarithm, as in Mamba2.
            steps = np.exp(rng.uniform(np.log(1e-3), np.log(0.1), count))
            return steps + np.log(-np.expm1(-steps))
        case _:
            return rng.standard_normal(count, np.float32) * np.float32(_NORMAL_STD)


class SafetensorsWeights:
    """One file, or a folder with ``model.safetensors`` or its shards; each tensor is read when it is asked for.

    Raises:
        ArchcError: files are missing or unreadable, or names or shapes don't fit the graph; all problems at once.
    """

    def __init__(self, path: Path, params: dict[str, Param]) -> None:
        self._homes: dict[str, Path] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[Path, Any] = {}
        for file in _files(path):
            try:
                opened: Any = safe_open(file, framework="numpy")
                self._files[file] = opened
                for name in opened.keys():  # noqa: SIM118 - the handle is no mapping
                    if name in self._homes:
                        raise ArchcError(f"{name} is in {self._homes[name].name} and in {file.name}")
                    self._homes[name] = file
                    header = opened.get_slice(name)
                    shapes[name] = tuple(header.get_shape())
                    if header.get_dtype() not in _FLOATS:
                        raise ArchcError(
                            f"{file}: {name} is {header.get_dtype()}; weights should be {', '.join(_FLOATS)}"
                        )
            except (SafetensorError, OSError) as error:
                raise ArchcError(f"{file} can't be read as safetensors: {error}") from error
        _match(path, shapes, params)

    def read(self, name: str, param: Param) -> Array:
        return self._files[self._homes[name]].get_tensor(name)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    index, whole = path / "model.safetensors.index.json", path / "model.safetensors"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ArchcError(f"{index} is no index of safetensors files: {error!r}") from error
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise ArchcError(f"{index} names files that are not there: {', '.join(missing)}")
        return [path / name for name in names]
    if whole.is_file():
        return [whole]
    raise ArchcError(f"{path} is neither a safetensors file nor a folder with model.safetensors or its index")


def _match(path: Path, shapes: dict[str, tuple[int, ...]], params: dict[str, Param]) -> None:
    lacking = [name for name in params if name not in shapes]
    extra = [name for name in shapes if name not in params]
    wrong = [
        f"{name} is {list(shapes[name])}, not {list(param.shape)}"
        for name, param in params.items()
        if name in shapes and shapes[name] != param.shape
    ]
    lines = [
        f"{len(names)} {what}: {_listed(names)}"
        for names, what in (
            (lacking, "weights of the model are not in the file"),
            (extra, "tensors of the file belong to no weight"),
            (wrong, "tensors have another shape"),
        )
        if names
    ]
    if lines:
        raise ArchcError(f"{path} doesn't fit the model\n  " + "\n  ".join(lines))


def _listed(names: Sequence[str], limit: int = 20) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def transposed(matrix: Array) -> Array:
    """The transpose as an array of its own, moved in tiles that fit a cache: several times faster than row by row."""
    out = np.empty(matrix.shape[::-1], matrix.dtype)
    for i in range(0, matrix.shape[0], _TILE):
        for j in range(0, matrix.shape[1], _TILE):
            out[j : j + _TILE, i : i + _TILE] = matrix[i : i + _TILE, j : j + _TILE].T
    return out


def _is_finite(array: Array) -> bool:
    """Whether a contiguous float16 array holds neither infinities nor NaNs; by its bits, which is faster than numpy's test."""
    bits = array.view(np.uint16).reshape(-1)
    blocks = (bits[start : start + _BLOCK_ELEMENTS] for start in range(0, bits.size, _BLOCK_ELEMENTS))
    return all(int((block & np.uint16(0x7FFF)).max()) < _FLOAT16_INFINITY for block in blocks)


def lazy_tensor(
    name: str,
    shape: Sequence[int],
    dtype: ir.DataType,
    sources: Sequence[tuple[str, Param]],
    transform: Transform | None,
    weights: WeightSource,
) -> ir.LazyTensor:
    """An initializer that is read, transformed and rounded when it is written, and forgotten afterwards.

    Raises (when read):
        ArchcError: a value lies beyond float16.
    """

    def make() -> ir.TensorProtocol:
        # The sources are dropped as soon as the transform is through: stacks of experts are many gigabytes.
        keep = (lambda array: array) if transform is None else transform
        array = keep(*(weights.read(source, param) for source, param in sources))
        assert array.shape == tuple(shape), f"{name}: the transform gives {array.shape}, not {tuple(shape)}"
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(array, dtype=NUMPY_DTYPES[dtype])
        if dtype == ir.DataType.FLOAT16 and not _is_finite(array):
            raise ArchcError(f"{name} has values that float16 can't hold; export it as bfloat16 or float32")
        return ir.Tensor(array, dtype=dtype, name=name)

    return ir.LazyTensor(make, dtype=dtype, shape=ir.Shape(list(shape)), name=name)


def joined(name: str, tensors: Sequence[ir.TensorProtocol], axis: int) -> ir.LazyTensor:
    """One tensor that holds several of one dtype along ``axis``, read when it is written, never more than one part at a time."""
    first = tensors[0]
    assert all(tensor.dtype == first.dtype for tensor in tensors), f"{name} is joined of several dtypes"
    shapes = [list(tensor.shape.numpy()) for tensor in tensors]
    axis %= len(shapes[0])
    shape = list(shapes[0])
    shape[axis] = sum(part[axis] for part in shapes)
    assert all(part[:axis] + part[axis + 1 :] == shape[:axis] + shape[axis + 1 :] for part in shapes), (
        f"{name}: {shapes}"
    )

    def make() -> ir.TensorProtocol:
        out = np.empty(shape, NUMPY_DTYPES[first.dtype])
        start = 0
        for tensor, part in zip(tensors, shapes, strict=True):
            out[(slice(None),) * axis + (slice(start, start + part[axis]),)] = tensor.numpy()
            start += part[axis]
        return ir.Tensor(out, dtype=first.dtype, name=name)

    return ir.LazyTensor(make, dtype=first.dtype, shape=ir.Shape(shape), name=name)
