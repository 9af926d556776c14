"""Which files there are to read, in order, and their bytes with a digest."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from archc.errors import ArchcError
from archc.training.data.manifest import InputFile

Form = Literal["text", "jsonl"]
_JSON_LINES = (".jsonl", ".ndjson")
_GZIP = ".gz"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read. ``name`` is relative to what was given, so that a folder may move."""

    path: Path
    name: str
    size_bytes: int
    mtime_ns: int

    @property
    def is_packed(self) -> bool:
        return self.path.suffix.lower() == _GZIP

    @property
    def form(self) -> Form:
        inner = self.path.with_suffix("") if self.is_packed else self.path
        return "jsonl" if inner.suffix.lower() in _JSON_LINES else "text"

    def record(self, digest: str) -> InputFile:
        return InputFile(path=self.name, size_bytes=self.size_bytes, mtime_ns=self.mtime_ns, sha256=digest)


def list_sources(paths: Sequence[Path]) -> list[Source]:
    """The files, folders in depth and by name; hidden files are left out, and empty ones of a folder.

    Raises:
        ArchcError: something is not there, can't be read or is empty; all of it is listed.
    """
    found: list[Source] = []
    problems: list[str] = []
    for path in paths:
        if not path.is_dir():
            problem = _add(found, path, path.name, keep_empty=True)
            problems += [problem] if problem else []
            continue
        before = len(found)
        wrong = [problem for file in _files(path, problems) if (problem := _add(found, file, _inside(file, path)))]
        problems += wrong
        if len(found) == before and not wrong:
            problems.append(f"{path} is empty: a folder of .txt, .md or .jsonl files has data")
    if not paths:
        problems.append("there is no data; give a file or a folder")
    if problems:
        raise ArchcError("\n".join(problems))
    return found


def _inside(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix()


def _files(folder: Path, problems: list[str]) -> list[Path]:
    def unreadable(error: OSError) -> None:
        problems.append(f"{error.filename} can't be read: {error.strerror}")

    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=unreadable):
        # os.walk goes into what is left in this list.
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(found, key=lambda file: _inside(file, folder))


def _add(found: list[Source], path: Path, name: str, *, keep_empty: bool = False) -> str:
    """Add a file; what is wrong with it, or nothing."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return f"{path} is no file that can be read again; data is a file or a folder of files"
        with path.open("rb"):
            pass
    except OSError as error:
        return f"{path} can't be read: {error.strerror or error}"
    if status.st_size == 0:
        return f"{path} is empty; data is a text, or lines of JSON with a text each" if keep_empty else ""
    found.append(Source(path, name, status.st_size, status.st_mtime_ns))
    return ""


class HashedFile(io.RawIOBase):
    """A file's bytes, and the SHA-256 of those that were read."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._file = source.path.open("rb", buffering=0)
        self._hash = sha256()
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        with memoryview(buffer) as view:
            self._hash.update(view[:count])
        self.read_bytes += count
        return count

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def opened(source: Source) -> Generator[tuple[io.BufferedIOBase, HashedFile]]:
    """(the bytes of a file, unpacked; the file as it is, which has been read to its end when the block ends well).

    Raises:
        ArchcError: it can't be read, or was changed in the meantime.
    """
    try:
        with HashedFile(source) as raw:
            plain = io.BufferedReader(raw, _BLOCK_BYTES)
            yield (io.BufferedReader(_unpacked(plain), _BLOCK_BYTES) if source.is_packed else plain), raw
            while plain.read(_BLOCK_BYTES):
                pass
        if raw.read_bytes != source.size_bytes or source.path.stat().st_mtime_ns != source.mtime_ns:
            raise ArchcError(f"{source.path} was changed while it was read; start again when it is finished")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ArchcError(f"{source.path} can't be unpacked: {error}") from error
    except OSError as error:
        raise ArchcError(f"{source.path} can't be read: {error.strerror or error}") from error


def _unpacked(plain: Any) -> Any:
    return gzip.GzipFile(fileobj=plain, mode="rb")


def digest(source: Source) -> str:
    """SHA-256 of a file."""
    with opened(source) as (_, raw):
        pass
    return raw.hexdigest()


def blocks(stream: io.BufferedIOBase) -> Iterator[bytes]:
    while block := stream.read(_BLOCK_BYTES):
        yield block
