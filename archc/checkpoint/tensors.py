"""Safetensors read without holding them: where each tensor lies, and its bytes when they are asked for.

Only safetensors is read; a file that Python would unpickle is refused. Files are read, not mapped, so that memory is that of
one tensor.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from archc.checkpoint.reading import INDEX, MAX_INDEX_BYTES, WHOLE, is_plain, read_json
from archc.errors import ArchcError
from archc.ir.values import Param

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
LENGTH_BYTES = 8
"""A file begins with the length of its header, which the tensors follow."""

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
}
"""What weights may be stored in."""
INTEGERS = ("I64", "I32")
FLOATS = tuple(name for name in DTYPES if name not in INTEGERS)


def legal_dtypes(param: Param) -> tuple[str, ...]:
    """What a weight may be stored in: a table of ids in integers, every other in floats, or it would be a quantised one."""
    return INTEGERS if param.dtype.startswith("int") else FLOATS


@dataclass(frozen=True, slots=True)
class Home:
    """Where a tensor lies: its open file, the first byte there, and what the bytes mean."""

    handle: int
    offset_bytes: int
    dtype: str
    shape: Shape

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return size_bytes(self.dtype, self.shape)


class Stored:
    """An open checkpoint: where each tensor is, its dtype and shape. Only dtypes of weights can be read."""

    def __init__(self, folder: Path, homes: Mapping[str, Home]) -> None:
        self.folder = folder
        self.homes = homes
        self.dtypes = {name: home.dtype for name, home in homes.items()}
        self.shapes = {name: home.shape for name, home in homes.items()}

    def read(self, name: str) -> Array:
        """One tensor, whole."""
        home = self.homes[name]
        return _read(home, home.offset_bytes, home.shape)

    def slice(self, name: str, at: int) -> Array:
        """One slice of a tensor's first dimension."""
        return self.rows(name, at, at + 1)[0]

    def part(self, name: str, start: int, shape: Shape) -> Array:
        """Elements of a tensor from ``start`` on, as an array of another shape."""
        home = self.homes[name]
        return _read(home, home.offset_bytes + start * DTYPES[home.dtype].itemsize, shape)

    def read_into(self, name: str, start: int, target: memoryview) -> None:
        """The bytes of a tensor from element ``start`` on, as many as the memory has."""
        home = self.homes[name]
        _fill(home.handle, home.offset_bytes + start * DTYPES[home.dtype].itemsize, target)

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Slices ``start`` to ``stop`` of a tensor's first dimension."""
        home = self.homes[name]
        row = size_bytes(home.dtype, home.shape[1:])
        return _read(home, home.offset_bytes + start * row, (stop - start, *home.shape[1:]))


def _read(home: Home, offset_bytes: int, shape: Shape) -> Array:
    dtype = DTYPES[home.dtype]
    data = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    _fill(home.handle, offset_bytes, data.data)
    return data.view(dtype).reshape(shape)


def _fill(handle: int, offset_bytes: int, view: memoryview) -> None:
    while view:
        count = os.preadv(handle, [view], offset_bytes)
        if count == 0:
            raise ArchcError("a file of the checkpoint became shorter while it was read")
        view, offset_bytes = view[count:], offset_bytes + count


def size_bytes(dtype: str, shape: Shape) -> int:
    """Bytes of a tensor of a dtype that weights may have."""
    return math.prod(shape) * DTYPES[dtype].itemsize


@contextmanager
def opened(path: Path) -> Iterator[Stored]:
    """The tensors of a safetensors file, or of a folder with one or with an index.

    Raises:
        ArchcError: files are missing, broken or not safetensors, or a name is in two of them.
    """
    homes: dict[str, Home] = {}
    files: dict[str, Path] = {}
    with ExitStack() as stack:
        for file in files_of(path):
            header, begin = header_of(file)
            twice = [name for name in header if name in homes]
            if twice:
                more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
                raise ArchcError(f"{files[twice[0]].name} and {file.name} of {path} both have {twice[0]}{more}")
            handle = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            stack.callback(os.close, handle)
            for name, entry in header.items():
                place = begin + entry["data_offsets"][0]
                homes[name] = Home(handle, place, entry["dtype"], tuple(entry["shape"]))
                files[name] = file
        yield Stored(path, homes)


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """(entry of every tensor, first byte of the data) of a file that safetensors itself finds sound.

    Raises:
        ArchcError: it does not.
    """
    try:
        # The library checks header, sizes and overlaps, and bounds the header's length.
        with safe_open(str(file), framework="numpy"):
            pass
        with file.open("rb") as stream:
            length_bytes = int.from_bytes(stream.read(LENGTH_BYTES), "little")
            header: dict[str, Any] = json.loads(stream.read(length_bytes))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise ArchcError(f"{file} can't be read as safetensors: {error}") from error
    header.pop("__metadata__", None)
    return header, LENGTH_BYTES + length_bytes


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
        table = read_json(index, most_bytes=MAX_INDEX_BYTES).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise ArchcError(f"{index} is no index of safetensors files: weight_map should map names to files")
        names = sorted(set(table.values()))
        outside = [name for name in names if not is_plain(name)]
        if outside:
            raise ArchcError(f"{index} names files outside its folder, which are not read: {', '.join(outside)}")
        strange = [name for name in names if not name.endswith(".safetensors")]
        if strange:
            raise ArchcError(f"{index}: {_not_safetensors(strange[0])}")
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise ArchcError(f"{index} names files that are not there: {', '.join(missing)}")
        return [path / name for name in names]
    if (path / WHOLE).is_file():
        return [path / WHOLE]
    pickled = sorted(file.name for file in path.glob("*") if file.suffix in (".bin", ".pt", ".pth"))
    if pickled:
        raise ArchcError(f"{path}: {_not_safetensors(pickled[0])}")
    raise ArchcError(f"{path} is neither a safetensors file nor a folder with {WHOLE} or its index")


def _not_safetensors(name: str) -> str:
    return (
        f"{name} is no safetensors file. Pickled files can run code and are never opened; convert it in a place you trust: "
        "transformers' from_pretrained, then save_pretrained(folder, safe_serialization=True)"
    )
