"""How torch's distributed checkpointing writes here: pieces streamed as safetensors, a folder that is named when all is there."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from archc.errors import ArchcError
from archc.training.checkpoint_files import (
    MANIFEST,
    SUFFIX,
    Checkpoint,
    StoredFile,
    folder_of,
    steps_in,
    sync_folder,
    write_synced,
)

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls them."""
SAVING, REPLACED, REMOVED = ".saving", ".replaced", ".removed"
"""Ends of hidden folders: one that is being written, the one before it of the same step, one that is going."""
_ALIGNMENT = 8
_WRITE_BYTES = 8 << 20


class ShardWriter(HuggingFaceStorageWriter):
    """One checkpoint. Ranks stream their pieces into a hidden folder; the first renames it when every file is on the disk.

    Files are those of the class that it is made from, which would make each in memory first. ``keep`` newest checkpoints stay,
    None keeps all.
    """

    def __init__(self, folder: Path, step: int, meta: Mapping[str, Any], keep: int | None) -> None:
        super().__init__(str(hidden(folder, step, SAVING)), save_distributed=True)
        self._folder, self._step, self._meta, self._keep = folder, step, dict(meta), keep

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if is_coordinator:
            # What a kill has left would be taken for pieces of this one.
            shutil.rmtree(self.path, ignore_errors=True)
            Path(self.path).mkdir(parents=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        items = sorted(plan.items, key=lambda item: (-_piece(item)[0].itemsize, item.index.fqn))
        if not items:
            done.set_result([])
            return done
        shard: int = plan.storage_data["shard_index"]
        name = f"rank-{shard - 1:05d}{SUFFIX}"
        stored = _write(Path(self.path) / name, items, planner)
        done.set_result([WriteResult(item.index, _size_bytes(item), (name, stored)) for item in items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the first rank, when every rank's file is on the disk."""
        files: dict[str, StoredFile] = dict(one.storage_data for found in results for one in found)
        tensors = {
            name: (DTYPES[one.properties.dtype], tuple(one.size))
            for name, one in sorted(metadata.state_dict_metadata.items())
            if isinstance(one, TensorStorageMetadata)
        }
        stage = Path(self.path)
        elsewhere = [name for name in files if not (stage / name).is_file()]
        if elsewhere:
            raise ArchcError(
                f"{', '.join(elsewhere[:3])}: written by other ranks and not seen by the first; the run folder should lie on "
                f"storage that all machines share"
            )
        write_synced(stage / MANIFEST, Checkpoint(stage, self._step, self._meta, files, tensors).to_json())
        sync_folder(stage)
        _appear(stage, self._folder, self._step)
        if self._keep is not None:
            # A checkpoint that can't be removed is no reason to lose the run.
            with suppress(OSError):
                forget(self._folder, self._keep)


def hidden(folder: Path, step: int, end: str) -> Path:
    """A folder beside the checkpoint of a step, which nothing takes for one."""
    return folder / f".{folder_of(step)}{end}"


def forget(folder: Path, keep: int) -> None:
    """Remove all but the ``keep`` newest; a folder loses its name first, so that half of one is never taken for a checkpoint."""
    for step, path in list(steps_in(folder).items())[:-keep]:
        going = hidden(folder, step, REMOVED)
        path.rename(going)
        shutil.rmtree(going)


def clean(folder: Path) -> None:
    """Remove what a killed process has left; a checkpoint that it was about to replace gets its name back."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if not entry.name.startswith(".step-"):
            continue
        whole = folder / entry.name.removeprefix(".").removesuffix(REPLACED)
        if entry.name.endswith(REPLACED) and not whole.exists():
            entry.rename(whole)
        elif entry.name.endswith((SAVING, REPLACED, REMOVED)):
            shutil.rmtree(entry)


def _appear(stage: Path, folder: Path, step: int) -> None:
    place = folder / folder_of(step)
    if not place.exists():
        stage.rename(place)
        sync_folder(folder)
        return
    earlier = hidden(folder, step, REPLACED)
    shutil.rmtree(earlier, ignore_errors=True)
    place.rename(earlier)
    stage.rename(place)
    sync_folder(folder)
    shutil.rmtree(earlier, ignore_errors=True)


def _piece(item: WriteItem) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    """Dtype of a tensor, size of this piece, and where it begins."""
    data = item.tensor_data
    assert data is not None, f"{item.index.fqn}: only tensors are written; what is none belongs into the meta data"
    assert data.properties.dtype in DTYPES, f"{item.index.fqn}: safetensors has no {data.properties.dtype}"
    return data.properties.dtype, tuple(data.chunk.sizes), tuple(data.chunk.offsets)


def _size_bytes(item: WriteItem) -> int:
    dtype, sizes, _ = _piece(item)
    return math.prod(sizes) * dtype.itemsize


def _write(file: Path, items: list[WriteItem], planner: SavePlanner) -> StoredFile:
    offsets = {item.index.fqn: {"saved_offsets": list(_piece(item)[2])} for item in items}
    header: dict[str, Any] = {
        "__metadata__": {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
    }
    end = 0
    for item in items:
        dtype, sizes, _ = _piece(item)
        assert item.index.fqn not in header, f"{item.index.fqn}: two pieces on one rank"
        start, end = end, end + _size_bytes(item)
        header[item.index.fqn] = {"dtype": DTYPES[dtype], "shape": list(sizes), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    stream = _Checked(file)
    try:
        stream.write(memoryview(struct.pack("<Q", len(text)) + text))
        for item in items:
            found = planner.resolve_data(item)
            assert isinstance(found, Tensor)
            stream.write(_bytes(found))
        return stream.finish()
    finally:
        stream.close()


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


class _Checked:
    """A file that is written once, and what its bytes add up to."""

    def __init__(self, file: Path) -> None:
        self._handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._size_bytes, self._crc32 = 0, 0

    def write(self, view: memoryview) -> None:
        while view:
            written = os.write(self._handle, view[:_WRITE_BYTES])
            self._crc32 = zlib.crc32(view[:written], self._crc32)
            self._size_bytes += written
            view = view[written:]

    def finish(self) -> StoredFile:
        os.fsync(self._handle)
        return StoredFile(self._size_bytes, self._crc32)

    def close(self) -> None:
        os.close(self._handle)
