"""What the system asks of a process and says about it: signals to end, and memory."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

if sys.platform != "win32":
    import resource


TOGETHER_S = 1.0
"""Signals so close are one request: Ctrl-C reaches every process of a terminal, and torchrun sends it on to its ranks."""


@contextmanager
def stop_requests() -> Generator[Callable[[], bool]]:
    """Whether the process was asked to end, by Ctrl-C or SIGTERM. The step goes on to its end; a second request breaks it."""
    asked = threading.Event()
    first_s = 0.0
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def note(number: int, frame: Any) -> None:
        nonlocal first_s
        if not asked.is_set():
            asked.set()
            first_s = time.monotonic()
        elif time.monotonic() - first_s >= TOGETHER_S:
            restore()
            os.kill(os.getpid(), number)

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
