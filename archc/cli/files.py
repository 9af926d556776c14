"""Files that appear whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from archc.errors import ArchcError
from archc.units import gib


def write_atomically(path: Path, text: str | bytes) -> None:
    """A file; a text is UTF-8, with the line ends that it has."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_new(path: Path, text: str, *, overwrite: bool) -> None:
    """A text file that is not there yet, or holds the same, or may be replaced.

    Raises:
        ArchcError: it holds something else, and ``overwrite`` is not given.
    """
    if path.exists() and not overwrite and path.read_bytes() != text.encode():
        raise ArchcError(f"{path} is there already and holds something else; --overwrite replaces it")
    write_atomically(path, text)


@contextmanager
def replaced(path: Path) -> Generator[Path]:
    """A file beside ``path`` to write to, which becomes ``path`` when the block ends well, else is removed."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def staged(out: Path) -> Generator[Path]:
    """A folder beside ``out`` to write to; its files move into ``out`` when the block ends well, else they are removed.

    Raises:
        ArchcError: ``out`` is a file.
    """
    if out.exists() and not out.is_dir():
        raise ArchcError(f"{out} is a file; a folder is written")
    out.parent.mkdir(parents=True, exist_ok=True)
    stage = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    stage.mkdir()
    try:
        yield stage
        out.mkdir(exist_ok=True)
        for file in sorted(stage.iterdir()):
            os.replace(file, out / file.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def require_disk(folder: Path, needed_bytes: int) -> None:
    """Stop before a disk is full, not when it is.

    Raises:
        ArchcError: the disk of ``folder`` can't hold so many bytes.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free_bytes = shutil.disk_usage(place).free
    if needed_bytes > free_bytes:
        raise ArchcError(f"the weights need {gib(needed_bytes)}, the disk of {folder} has {gib(free_bytes)} free")


def require_memory(needed_bytes: int) -> None:
    """Stop before the machine swaps or kills the process.

    Raises:
        ArchcError: this machine's memory can't hold so many bytes.
    """
    if not hasattr(os, "sysconf"):
        return
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes > memory_bytes:
        raise ArchcError(f"the weights need {gib(needed_bytes)}, this machine has {gib(memory_bytes)} of memory")
