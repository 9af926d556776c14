"""Weights in safetensors files: one file, or a folder of shards with their index. Files are mapped, never read whole."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archc.checkpoint.tensors import DTYPES, FLOATS, files_of, header_of, legal_dtypes
from archc.errors import ArchcError
from archc.ir.values import Param
from archc_exporters.onnx.arrays import Array
from archc_exporters.onnx.listing import listed


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a tensor lies: its file, the first byte there, and what the bytes mean."""

    file: Path
    offset_bytes: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class SafetensorsWeights:
    """One file, or a folder with ``model.safetensors`` or its shards; each tensor is a view of the mapped file.

    Raises:
        ArchcError: files are missing or unreadable, or names, shapes or dtypes don't fit the graph; all problems at once.
    """

    def __init__(self, path: Path, params: dict[str, Param]) -> None:
        self._homes: dict[str, _Home] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        for file in files_of(path):
            homes = _homes(file)
            twice = [name for name in homes if name in self._homes]
            if twice:
                raise ArchcError(f"{self._homes[twice[0]].file.name} and {file.name} both have {listed(twice)}")
            self._homes.update(homes)
        _match(path, self._homes, params)

    def read(self, name: str, param: Param) -> Array:
        """The tensor as it is stored, without a copy: its bytes come from the file when they are looked at."""
        home = self._homes[name]
        if home.elements == 0:
            return np.empty(home.shape, DTYPES[home.dtype])
        mapped = np.frombuffer(self._map(home.file), DTYPES[home.dtype], home.elements, home.offset_bytes)
        return mapped.reshape(home.shape)

    def release(self, name: str) -> None:
        """Pages of the tensor's part of the file leave this process; looked at again, they come back."""
        home = self._homes[name]
        if home.elements == 0 or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = home.offset_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        length_bytes = home.offset_bytes - first + home.elements * DTYPES[home.dtype].itemsize
        self._map(home.file).madvise(mmap.MADV_DONTNEED, first, length_bytes)

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as handle:
                self._maps[file] = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[file]


def _homes(file: Path) -> dict[str, _Home]:
    """name -> home of every tensor of a file; the library copies what it reads, so tensors are looked up by their offsets."""
    header, begin = header_of(file)
    other = [f"{name} is {entry['dtype']}" for name, entry in header.items() if entry["dtype"] not in DTYPES]
    if other:
        raise ArchcError(f"{file}: {listed(other)}; weights should be {', '.join(FLOATS)}")
    return {
        name: _Home(file, begin + entry["data_offsets"][0], entry["dtype"], tuple(entry["shape"]))
        for name, entry in header.items()
    }


def _match(path: Path, homes: dict[str, _Home], params: dict[str, Param]) -> None:
    wrong = [
        f"{name} is {list(homes[name].shape)}, not {list(param.shape)}"
        for name, param in params.items()
        if name in homes and homes[name].shape != param.shape
    ]
    strange = [
        f"{name} is {homes[name].dtype}"
        for name, param in params.items()
        if name in homes and homes[name].dtype not in legal_dtypes(param)
    ]
    problems = (
        (strange, "tensors have a dtype that their weights can't have"),
        ([name for name in params if name not in homes], "weights of the model are not in the file"),
        ([name for name in homes if name not in params], "tensors of the file belong to no weight"),
        (wrong, "tensors have another shape"),
    )
    lines = [f"{len(names)} {what}: {listed(names)}" for names, what in problems if names]
    if lines:
        raise ArchcError(f"{path} doesn't fit the model\n  " + "\n  ".join(lines))
