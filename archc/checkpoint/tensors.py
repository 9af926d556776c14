"""Safetensors in and out without holding them: files opened by name, and shards written in any order.

Only safetensors is read; a file that Python would unpickle is refused.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from archc.checkpoint.reading import read_json
from archc.errors import ArchcError

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
_ALIGNMENT = 8

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""What weights may be stored in."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Stored:
    """An open checkpoint: where each tensor is, its dtype and shape."""

    folder: Path
    homes: Mapping[str, Any]
    dtypes: Mapping[str, str]
    shapes: Mapping[str, Shape]

    def read(self, name: str) -> Array:
        """One tensor, whole."""
        return self.homes[name].get_tensor(name)

    def slice(self, name: str, at: int) -> Array:
        """One slice of a tensor's first dimension."""
        return self.homes[name].get_slice(name)[at]


@contextmanager
def opened(path: Path) -> Iterator[Stored]:
    """The tensors of a safetensors file, or of a folder with one or with an index.

    Raises:
        ArchcError: files are missing, broken or not safetensors; a name is in two files; a dtype is none of weights.
    """
    homes: dict[str, Any] = {}
    dtypes: dict[str, str] = {}
    shapes: dict[str, Shape] = {}
    problems: list[str] = []
    with ExitStack() as stack:
        for file in files_of(path):
            try:
                handle: Any = stack.enter_context(safe_open(str(file), framework="numpy"))
                for name in handle.keys():  # noqa: SIM118 - the handle is no mapping
                    part = handle.get_slice(name)
                    if name in homes:
                        problems.append(f"{name} is in more than one file")
                    homes[name], dtypes[name], shapes[name] = handle, part.get_dtype(), tuple(part.get_shape())
            except (SafetensorError, OSError) as error:
                raise ArchcError(f"{file} can't be read as safetensors: {error}") from error
        strange = sorted({dtype for dtype in dtypes.values() if dtype not in DTYPES})
        if strange:
            first = next(name for name, dtype in dtypes.items() if dtype in strange)
            problems.append(
                f"{first} is {dtypes[first]}; weights should be {', '.join(DTYPES)}: a quantised checkpoint has to be "
                "dequantised first"
            )
        if problems:
            raise ArchcError(f"{path}: {len(problems)} problems\n  " + "\n  ".join(problems))
        yield Stored(path, homes, dtypes, shapes)


def files_of(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint, those of its index where it has one.

    Raises:
        ArchcError: there are none, or the index names files that are missing or elsewhere.
    """
    if path.is_file():
        if path.suffix != ".safetensors":
            raise ArchcError(_not_safetensors(path.name))
        return [path]
    index = path / INDEX
    if index.is_file():
        table = read_json(index).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise ArchcError(f"{index} is no index of safetensors files: weight_map should map names to files")
        names = sorted(set(table.values()))
        outside = [name for name in names if not name or Path(name).name != name or name in (".", "..")]
        if outside:
            raise ArchcError(f"{index} names files outside its folder: {', '.join(map(repr, outside))}")
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise ArchcError(f"{index} names files that are not there: {', '.join(missing)}")
        return [path / name for name in names]
    if (path / WHOLE).is_file():
        return [path / WHOLE]
    pickled = sorted(file.name for file in path.glob("*.bin")) if path.is_dir() else []
    if pickled:
        raise ArchcError(f"{path}: {_not_safetensors(pickled[0])}")
    raise ArchcError(f"{path} is neither a safetensors file nor a folder with {WHOLE} or its index")


def _not_safetensors(name: str) -> str:
    return (
        f"{name} is no safetensors file. Pickled files can run code and are never opened; convert it in a place you trust: "
        "transformers' from_pretrained, then save_pretrained(folder, safe_serialization=True)"
    )


@dataclass(frozen=True)
class Slot:
    """Where a tensor goes: which file, at which byte, how large a slice of its first dimension is."""

    file: Path
    offset: int
    dtype: np.dtype[Any]
    shape: Shape


class Writer:
    """Shards of a folder, all opened at their full size, whose tensors may come in any order and in slices."""

    def __init__(
        self, folder: Path, tensors: Mapping[str, tuple[str, Shape]], *, shard_bytes: int, metadata: Mapping[str, str]
    ) -> None:
        self.slots: dict[str, Slot] = {}
        self._handles: dict[Path, int] = {}
        shards = _shards(tensors, shard_bytes)
        total = sum(_bytes(*tensor) for tensor in tensors.values())
        weight_map: dict[str, str] = {}
        for number, names in enumerate(shards, 1):
            file = folder / (WHOLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors")
            self._open(file, {name: tensors[name] for name in names}, metadata)
            weight_map |= dict.fromkeys(names, file.name)
        if len(shards) > 1:
            table = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            (folder / INDEX).write_text(json.dumps(table, indent=2) + "\n", "utf-8")

    def _open(self, file: Path, tensors: Mapping[str, tuple[str, Shape]], metadata: Mapping[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        end = 0
        for name, (dtype, shape) in tensors.items():
            start, end = end, end + _bytes(dtype, shape)
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        base = 8 + len(text)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._handles[file] = handle
        _write(handle, struct.pack("<Q", len(text)) + text, 0)
        os.truncate(handle, base + end)
        for name, (dtype, shape) in tensors.items():
            self.slots[name] = Slot(file, base + header[name]["data_offsets"][0], DTYPES[dtype], shape)

    def put(self, name: str, array: Array, *, slice_at: int | None = None) -> None:
        """A tensor, or one slice of its first dimension, bit by bit as it is."""
        slot = self.slots[name]
        expected = slot.shape if slice_at is None else slot.shape[1:]
        assert (array.dtype, array.shape) == (slot.dtype, expected), f"{name}: {array.dtype} {array.shape}"
        data = np.ascontiguousarray(array)
        offset = slot.offset + (slice_at or 0) * data.nbytes
        _write(self._handles[slot.file], data.reshape(-1).view(np.uint8).data, offset)

    def close(self) -> None:
        """Close every file."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()


def _write(handle: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


def _bytes(dtype: str, shape: Shape) -> int:
    return int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize


def _shards(tensors: Mapping[str, tuple[str, Shape]], limit: int) -> list[list[str]]:
    """Names in shards of at most ``limit`` bytes, a larger tensor alone; at least one shard."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        needed = _bytes(*tensor)
        if shards[-1] and size + needed > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += needed
    return shards


def dtype_text(dtype: np.dtype[Any]) -> str:
    """safetensors' name of a dtype."""
    return _NAMES[dtype]
