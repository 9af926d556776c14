"""Safetensors written without holding them: shards at their full size at once, tensors in any order, whole or in slices."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archc.checkpoint.reading import INDEX, WHOLE
from archc.checkpoint.tensors import DTYPES, Array, Home, Shape, size_bytes
from archc.errors import ArchcError
from archc.units import gib

SHARD_BYTES = 5 * 10**9
_ALIGNMENT = 8
_COPY_BYTES = 8 << 20
"""How much is held where the system can't copy from file to file."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor goes: which file, at which byte, how large a slice of its first dimension is."""

    file: Path
    offset_bytes: int
    dtype: str
    shape: Shape


class Writer:
    """Shards of a folder, all opened at their full size.

    Raises:
        ArchcError: the disk has no room for them.
    """

    def __init__(
        self,
        folder: Path,
        tensors: Mapping[str, tuple[str, Shape]],
        *,
        shard_bytes: int,
        metadata: Mapping[str, str],
        whole: str = WHOLE,
    ) -> None:
        self.slots: dict[str, Slot] = {}
        self._handles: dict[Path, int] = {}
        shards = _shards(tensors, shard_bytes)
        self.total_bytes = total = sum(size_bytes(*tensor) for tensor in tensors.values())
        free = shutil.disk_usage(folder).free
        if total > free:
            raise ArchcError(f"the weights need {gib(total)}, the disk of {folder.parent} has {gib(free)} free")
        weight_map: dict[str, str] = {}
        for number, names in enumerate(shards, 1):
            file = folder / (whole if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors")
            self._open(file, {name: tensors[name] for name in names}, metadata)
            weight_map |= dict.fromkeys(names, file.name)
        if len(shards) > 1:
            table = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            (folder / INDEX).write_text(json.dumps(table, indent=2) + "\n", "utf-8")

    def _open(self, file: Path, tensors: Mapping[str, tuple[str, Shape]], metadata: Mapping[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        end = 0
        for name, (dtype, shape) in tensors.items():
            start, end = end, end + size_bytes(dtype, shape)
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        base = 8 + len(text)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o644)
        self._handles[file] = handle
        _write(handle, struct.pack("<Q", len(text)) + text, 0)
        os.truncate(handle, base + end)
        for name, (dtype, shape) in tensors.items():
            self.slots[name] = Slot(file, base + header[name]["data_offsets"][0], dtype, shape)

    def put(self, name: str, array: Array, *, slice_at: int | None = None, row_at: int | None = None) -> None:
        """A tensor, one slice of its first dimension, or rows of it from ``row_at`` on, bit by bit as it is."""
        slot = self.slots[name]
        expected = slot.shape if slice_at is None else slot.shape[1:]
        if row_at is not None:
            expected = (array.shape[0], *slot.shape[1:])
        assert (array.dtype, array.shape) == (DTYPES[slot.dtype], expected), f"{name}: {array.dtype} {array.shape}"
        data = np.ascontiguousarray(array)
        row = data.nbytes if row_at is None else data.nbytes // max(1, array.shape[0])
        offset = slot.offset_bytes + (slice_at or row_at or 0) * row
        _write(self._handles[slot.file], data.reshape(-1).view(np.uint8).data, offset)

    def copy(
        self, name: str, home: Home, *, count: int | None = None, from_element: int = 0, to_element: int = 0
    ) -> None:
        """Bytes of a stored tensor, ``count`` elements or all, without looking at them."""
        slot = self.slots[name]
        width = DTYPES[home.dtype].itemsize
        wanted = math.prod(home.shape) if count is None else count
        room = math.prod(slot.shape) - to_element
        assert home.dtype == slot.dtype, f"{name}: {home.dtype}"
        assert wanted <= min(room, math.prod(home.shape) - from_element), f"{name}: {wanted} elements"
        source, target = home.offset_bytes + from_element * width, slot.offset_bytes + to_element * width
        _copy(home.handle, source, self._handles[slot.file], target, wanted * width)

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


def _copy(source: int, start: int, target: int, at: int, length: int) -> None:
    while length:
        done = _copy_inside(source, start, target, at, length)
        if not done:
            data = os.pread(source, min(length, _COPY_BYTES), start)
            if not data:
                raise ArchcError("a file of the checkpoint became shorter while it was read")
            _write(target, data, at)
            done = len(data)
        start, at, length = start + done, at + done, length - done


def _copy_inside(source: int, start: int, target: int, at: int, length: int) -> int:
    """Bytes that the system copied from file to file; 0 where it can't."""
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(source, target, min(length, 1 << 30), start, at)
    except OSError:
        # Of two file systems, or of one that has no such call; writing says what is wrong where more is.
        return 0


def _shards(tensors: Mapping[str, tuple[str, Shape]], limit: int) -> list[list[str]]:
    """Names in shards of at most ``limit`` bytes, a larger tensor alone; at least one shard."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        needed = size_bytes(*tensor)
        if shards[-1] and size + needed > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += needed
    return shards
