"""What a run says when a rank is gone: which one, how it ended, and where the run goes on from."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from archc.errors import ArchcError
from archc.training.run_locks import RankLock, lost_ranks

_WAIT_S = 2.0
"""Ranks notice each other's end within this time of the first error."""
_COMMUNICATION = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out", re.IGNORECASE)


class RankLostError(ArchcError):
    """Another rank is gone, or does not answer, so this one can't go on."""


def lock_run(run: Path, rank: int, world: int) -> RankLock:
    """This rank's lock of a run folder. All ranks call it, and get theirs or none.

    Raises:
        ArchcError: another run holds one of them.
    """
    own: RankLock | None = None
    reason: str | None = None
    try:
        own = RankLock(run, rank)
    except (ArchcError, OSError) as error:
        reason = str(error)
    reasons = [reason]
    if world > 1:
        reasons = [None] * world
        dist.all_gather_object(reasons, reason)
    first = next((one for one in reasons if one is not None), None)
    if own is not None and first is None:
        return own
    if own is not None:
        own.close()
    raise ArchcError(first)


@contextmanager
def told_of_lost_ranks(
    run: Path, lock: RankLock, *, rank: int, world: int, step: Callable[[], int], last: Callable[[], Path | None]
) -> Iterator[None]:
    """Runs the loop of a rank. ``step`` gives the step that is being made, ``last`` the newest finished checkpoint.

    Whatever ends it is left in the rank's lock, for others to tell.

    Raises:
        RankLostError: what ended it was another rank.
    """
    try:
        yield
    except Exception as error:
        if world == 1:
            lock.end(_line(error))
            raise
        # torchrun ends all ranks when one has ended; this one is about to end, and has something to say first.
        _outlive_sigterm()
        is_between = _is_between_ranks(error)
        lost = lost_ranks(run, world, own=rank, wait_s=_WAIT_S if is_between else 0.0)
        if not is_between and not lost:
            lock.end(_line(error))
            raise
        lock.end(_line(error), because_of_others=True)
        raise RankLostError(_message(lost, error, world=world, step=step(), last=last())) from error
    except BaseException as error:
        lock.end(_line(error) or type(error).__name__)
        raise
    else:
        lock.end("done")


def _message(lost: dict[int, str], error: Exception, *, world: int, step: int, last: Path | None) -> str:
    if lost:
        what = "; ".join(f"rank {rank} of {world} was lost in step {step:,}: {how}" for rank, how in lost.items())
    else:
        what = f"another rank of {world} did not answer in step {step:,}: {_line(error)}"
    onward = f"{last} is the last checkpoint, and --resume goes on from it" if last else "there was no checkpoint yet"
    return f"{what}; {onward}"


def _is_between_ranks(error: Exception) -> bool:
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError | ArchcError) and _COMMUNICATION.search(str(error)) is not None
    )


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _outlive_sigterm() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
