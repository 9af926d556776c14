"""Processor time of a piece of work, without the garbage that other tests of the same process have left."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timed:
    """``seconds`` of this process's clock, so that a busy machine fails nothing; known when the block ends."""

    seconds: float = 0.0


@contextmanager
def timed() -> Iterator[Timed]:
    """Time a block as a fresh process would see it.

    After many tests a process holds millions of objects, and each full collection walks over all of them. What is there
    before the block is set aside for as long as it runs.
    """
    found = Timed()
    gc.collect()
    gc.freeze()
    start = time.process_time()
    try:
        yield found
    finally:
        found.seconds = time.process_time() - start
        gc.unfreeze()
