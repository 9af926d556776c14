"""What the system asks of a process and says about it: signals to end, and memory."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

if sys.platform != "win32":
    import resource


@contextmanager
def stop_requests() -> Generator[Callable[[], bool]]:
    """Whether the process was asked to end, by Ctrl-C or SIGTERM. The step goes on to its end; a second request breaks it."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def note(number: int, frame: Any) -> None:
        asked.set()
        restore()

    for each in before:
        signal.signal(each, note)
    try:
        yield asked.is_set
    finally:
        restore()


def peak_memory_bytes(device: torch.device) -> int:
    """The most that a device's allocator has held; on a CPU, that the process has had in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
