"""Who trains into a run folder: a locked file for each rank, from which others see that it lives, and why it ended.

The system gives a lock back when its process ends, however it ends, so what a dead one has left is no lock.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from archc.errors import ArchcError

if sys.platform != "win32":
    import fcntl

LOCKS = ".locks"
_LOOK_S = 0.05


class RankLock:
    """The lock of a rank, held until ``close`` or the end of the process.

    Raises:
        ArchcError: a living process holds it.
    """

    def __init__(self, run: Path, rank: int) -> None:
        self._file = _file(run, rank)
        self._file.parent.mkdir(exist_ok=True)
        self._handle = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
        if not _is_locked(self._handle, shared=False):
            os.close(self._handle)
            raise ArchcError(f"{run} is being trained into by {_holder(self._file)}; it ends first")
        self._told: dict[str, Any] = {"pid": os.getpid(), "host": socket.gethostname()}
        self._write()

    def end(self, reason: str, *, because_of_others: bool = False) -> None:
        """Leave word why this rank ends; who is killed leaves none."""
        self._told |= {"ended": reason, "because_of_others": because_of_others}
        self._write()

    def close(self) -> None:
        """Let go of it."""
        os.close(self._handle)

    def _write(self) -> None:
        data = json.dumps(self._told).encode()
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, data, 0)


def lost_ranks(run: Path, world: int, *, own: int, wait_s: float = 0.0) -> dict[int, str]:
    """Other ranks that no longer live, and how they ended, but for those that ended because of others.

    Looks for up to ``wait_s`` seconds, until there is one.
    """
    until = time.monotonic() + wait_s
    while True:
        found = {rank: how for rank in range(world) if rank != own and (how := _ended(_file(run, rank))) is not None}
        if found or time.monotonic() >= until:
            return found
        time.sleep(_LOOK_S)


def _ended(file: Path) -> str | None:
    """How the process of a lock ended, None where it lives, or ended because of another."""
    try:
        handle = os.open(file, os.O_RDONLY)
    except OSError:
        # A rank that has not come so far yet.
        return None
    try:
        if not _is_locked(handle, shared=True):
            return None
    finally:
        os.close(handle)
    told = _told(file)
    if told.get("because_of_others"):
        return None
    return str(told["ended"]) if "ended" in told else "it was killed, or ended without a word"


def _is_locked(handle: int, *, shared: bool) -> bool:
    """Whether the file could be locked, or its system has no locks, which then keep nobody out."""
    if sys.platform == "win32":
        return not shared
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return not shared
    return True


def _holder(file: Path) -> str:
    told = _told(file)
    return f"process {told.get('pid', 'unknown')} on {told.get('host', 'an unknown machine')}"


def _told(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _file(run: Path, rank: int) -> Path:
    return run / LOCKS / f"rank-{rank:05d}"
