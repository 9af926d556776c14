"""Folders and files that change places: in one step where the system can, else so that an interrupted change can be undone."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ASIDE = ".archc-before-"
"""In the name of a folder that was moved out of the way for a moment."""
_BEFORE = ".before"
"""In a stage inside the folder: the files that were there."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_LAST = ("model.onnx", "archc.json")
"""What makes a folder an export: taken away first and put in last, so that no mixture looks like one."""


def exchange(one: Path, other: Path) -> bool:
    """Two folders swap their names in one step; False where the system or its file system can't."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    names = os.fsencode(one), os.fsencode(other)
    return libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


def replace_whole(stage: Path, place: Path) -> None:
    """The same in two steps. Killed between them, the old folder lies beside its place under a name with ``ASIDE``."""
    aside = place.with_name(f".{place.name}{ASIDE}{stage.name.rpartition('-')[2]}")
    place.rename(aside)
    try:
        stage.rename(place)
    except BaseException:
        if not place.exists():
            aside.rename(place)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def move_in(stage: Path, place: Path, new: Collection[str], old: Collection[str]) -> None:
    """Files of a stage inside ``place`` take the place of the old ones, one by one; all or none unless the process is killed."""
    before = stage / _BEFORE
    before.mkdir()
    try:
        for name in _ordered(old)[::-1]:
            if os.path.lexists(place / name):
                (place / name).rename(before / name)
        for name in _ordered(new):
            (stage / name).rename(place / name)
    except BaseException:
        move_out(stage, place, new)
        raise


def move_out(stage: Path, place: Path, new: Collection[str]) -> None:
    """Undo a ``move_in`` that did not come to its end. It may be interrupted itself, and done again."""
    before = stage / _BEFORE
    if before.is_dir():
        for name in new:
            if not os.path.lexists(stage / name) and os.path.lexists(place / name):
                (place / name).rename(stage / name)
        for name in _ordered(os.listdir(before)):
            (before / name).rename(place / name)


def _ordered(names: Collection[str]) -> Sequence[str]:
    return sorted(names, key=lambda name: (_LAST.index(name) if name in _LAST else -1, name))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While the block runs, ``is_abandoned`` is false for the folder, wherever it is moved."""
    handle = _lock(folder)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def is_abandoned(folder: Path) -> bool:
    """Whether no living process holds the folder locked. False where the system can't say."""
    handle = _lock(folder)
    if handle is None:
        return False
    os.close(handle)
    return True


def _lock(folder: Path) -> int | None:
    """An open folder that is locked as long as it is open; None where somebody else has it, or locks are unknown."""
    if sys.platform == "win32":
        return None
    import fcntl

    handle: int | None = None
    try:
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if handle is not None:
            os.close(handle)
        return None
    return handle
