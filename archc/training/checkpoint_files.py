"""A checkpoint as it lies on the disk: safetensors of every rank, and a manifest that says what must be there.

Nothing in it is a pickle, so one from a stranger runs no code. The files are those of torch's ``HuggingFaceStorageWriter``:
pieces of tensors, and in the header where each begins in the whole.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archc.checkpoint.reading import is_plain, read_json
from archc.errors import ArchcError

FORMAT = 1
MANIFEST = "manifest.json"
SUFFIX = ".safetensors"
MAX_MANIFEST_BYTES = 1 << 30
_STEP = re.compile(r"step-(\d{8,})")
_READ_BYTES = 8 << 20

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a file of a checkpoint must be: its size, and the CRC-32 of its bytes."""

    size_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A finished checkpoint. ``tensors`` gives dtype and shape of whole tensors, ``meta`` is what the run keeps beside them."""

    path: Path
    step: int
    meta: Mapping[str, Any]
    files: Mapping[str, StoredFile]
    tensors: Mapping[str, tuple[str, Shape]]

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """What a folder's manifest says, its files not yet looked at.

        Raises:
            ArchcError: there is no such checkpoint, or the manifest is none.
        """
        folder = Path(path)
        file = folder / MANIFEST
        if not file.is_file():
            raise ArchcError(f"{folder} is no checkpoint: it has no {MANIFEST}")
        data = read_json(file, most_bytes=MAX_MANIFEST_BYTES)
        if data.get("format") != FORMAT:
            raise ArchcError(
                f"{file}: format should be {FORMAT} (found {data.get('format')!r}); another archc wrote it"
            )
        try:
            files = {str(name): StoredFile(int(one["bytes"]), int(one["crc32"])) for name, one in data["files"].items()}
            tensors = {
                str(name): (str(one["dtype"]), tuple(int(size) for size in one["shape"]))
                for name, one in data["tensors"].items()
            }
            found = cls(folder, int(data["step"]), dict(data["meta"]), files, tensors)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArchcError(f"{file} is damaged: {error!r}") from error
        strange = [name for name in files if not is_plain(name) or not name.endswith(SUFFIX)]
        if strange:
            raise ArchcError(f"{file} names files that no checkpoint has: {', '.join(strange[:3])}")
        return found

    def to_json(self) -> dict[str, Any]:
        """The manifest."""
        return {
            "format": FORMAT,
            "step": self.step,
            "meta": dict(self.meta),
            "files": {name: {"bytes": one.size_bytes, "crc32": one.crc32} for name, one in self.files.items()},
            "tensors": {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in self.tensors.items()},
        }

    def problems(self, *, part: int = 0, parts: int = 1) -> list[str]:
        """What is missing, of another size, changed or too much. Bytes are read of every ``parts``-th file from ``part`` on."""
        found: list[str] = []
        for number, (name, expected) in enumerate(sorted(self.files.items())):
            file = self.path / name
            if not file.is_file():
                found.append(f"{name} is missing")
            elif (size := file.stat().st_size) != expected.size_bytes:
                found.append(f"{name} has {size:,} bytes, {expected.size_bytes:,} were written")
            elif number % parts == part and _crc32(file) != expected.crc32:
                found.append(f"{name} was changed since it was written: its checksum is another")
        there = {entry.name for entry in self.path.iterdir() if entry.name.endswith(SUFFIX)}
        found += [f"{name} is no file of this checkpoint" for name in sorted(there - self.files.keys())]
        return found

    def misfits(self, wanted: Mapping[str, tuple[str, Shape]]) -> list[str]:
        """How tensors that are to be filled differ from what is stored, all but those that are stored and not wanted."""
        found = [f"{name} is not in it" for name in wanted if name not in self.tensors]
        for name, (dtype, shape) in wanted.items():
            if name not in self.tensors:
                continue
            stored_dtype, stored_shape = self.tensors[name]
            if stored_shape != shape:
                found.append(f"{name} is {list(stored_shape)}, the run's is {list(shape)}")
            if stored_dtype != dtype:
                found.append(f"{name} is {stored_dtype}, the run's is {dtype}")
        return found


def folder_of(step: int) -> str:
    """The name of the checkpoint after ``step`` optimizer steps."""
    return f"step-{step:08d}"


def steps_in(folder: Path) -> dict[int, Path]:
    """Finished checkpoints of a folder, step -> where it is, the earliest first."""
    if not folder.is_dir():
        return {}
    found = ((_STEP.fullmatch(entry.name), entry) for entry in folder.iterdir())
    return dict(
        sorted((int(name[1]), entry) for name, entry in found if name is not None and (entry / MANIFEST).is_file())
    )


def latest(folder: Path) -> Path | None:
    """The newest finished checkpoint; a folder gets its name only when it is whole."""
    return next(reversed(steps_in(folder).values()), None)


def at_step(folder: Path, step: int | None) -> Path:
    """The checkpoint of a step, or the newest.

    Raises:
        ArchcError: there is none; those that there are are listed.
    """
    there = steps_in(folder)
    if not there:
        raise ArchcError(f"{folder} holds no finished checkpoint yet")
    if step is None:
        return next(reversed(there.values()))
    if step not in there:
        raise ArchcError(
            f"{folder} holds no checkpoint of step {step}; there are those of {', '.join(map(str, there))}"
        )
    return there[step]


def sync_folder(folder: Path) -> None:
    """Names in a folder, lasting over a loss of power, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(file: Path, data: Mapping[str, Any]) -> None:
    """JSON that is on the disk when this returns."""
    with file.open("wb") as stream:
        stream.write((json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())
        stream.flush()
        os.fsync(stream.fileno())


def listed(problems: Iterable[str], most: int = 20) -> str:
    """Problems, a line each."""
    found = list(problems)
    rest = [f"and {len(found) - most:,} more"] if len(found) > most else []
    return "\n  ".join([*found[:most], *rest])


def _crc32(file: Path) -> int:
    found = 0
    with file.open("rb", buffering=0) as stream:
        while data := stream.read(_READ_BYTES):
            found = zlib.crc32(data, found)
    return found
