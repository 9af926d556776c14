"""How much memory is free: what the machine has left, or what a container may still take."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

_UNKNOWN_BYTES = 4 << 30
"""Assumed where the system doesn't say."""


def free_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that a new process can take before the system swaps or kills: the least of the machine's and the container's."""
    machine = _available(proc / "meminfo")
    left = [] if machine is None else [machine]
    left += _left_in_cgroups(proc / "self" / "cgroup", cgroups)
    return max(0, min(left)) if left else _physical()


def _available(meminfo: Path) -> int | None:
    for line in _text(meminfo).splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _physical() -> int:
    names = getattr(os, "sysconf_names", {})
    pages = next((name for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in names), None)
    return _UNKNOWN_BYTES if pages is None else os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _left_in_cgroups(own: Path, mount: Path) -> list[int]:
    """What each group above this process may still take; version 2 and the memory controller of version 1."""
    found: list[int] = []
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files, base = ("memory.max", "memory.current", "inactive_file"), mount
        elif "memory" in controllers.split(","):
            files, base = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), mount / "memory"
        else:
            continue
        group = PurePosixPath(path)
        for each in (group, *group.parents):
            left = _left(base / str(each).lstrip("/"), *files)
            if left is not None:
                found.append(left)
    return found


def _left(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    most, used = _text(group / limit).strip(), _text(group / usage).strip()
    if not most.isdigit() or not used.isdigit():
        return None
    # Pages of files that nobody reads are given back before anyone is killed.
    cached = next(
        (
            int(line.split()[1])
            for line in _text(group / "memory.stat").splitlines()
            if line.startswith(f"{reclaimable} ")
        ),
        0,
    )
    return int(most) - int(used) + cached


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
