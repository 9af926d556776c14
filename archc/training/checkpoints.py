"""Checkpoints of a run: written while training goes on, whole or not there, and read by any number of ranks.

torch's distributed checkpointing does the work: every rank writes the pieces that it holds, and reads those that it needs.
"""

from __future__ import annotations

import errno
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save as dcp_async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from archc.errors import ArchcError
from archc.training.checkpoint_files import Checkpoint, at_step, folder_of, latest, listed, steps_in
from archc.training.checkpoint_writer import DTYPES, SAVING, ShardWriter, clean, hidden
from archc.units import gib

TIMEOUT = timedelta(hours=1)
"""Ranks wait so long for the slowest disk. A rank that is gone is noticed at once."""


class Checkpoints:
    """The checkpoints in a folder, of which the ``keep`` newest stay (None: all). Every rank has one and calls it alike.

    The folder must be seen by all ranks. Opening it to train removes what a killed process has left unfinished.
    """

    def __init__(self, folder: str | Path, keep: int | None = None) -> None:
        assert keep is None or keep >= 1, f"at least one checkpoint is kept (found {keep})"
        self.folder = Path(folder)
        self._keep = keep
        self._pending: tuple[int, Future[Any]] | None = None
        self._finished: list[int] = []
        self._noted: int | None = None
        # A group of its own: a save in the background must not take what the step sends.
        self._group: dist.ProcessGroup | None = (
            cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=TIMEOUT)) if dist.is_initialized() else None
        )
        self._pinned = DefaultStager(StagingOptions(True, False, False, True)) if torch.cuda.is_available() else None
        reason: str | None = None
        if self._is_first:
            try:
                clean(self.folder)
            except OSError as error:
                reason = f"{self.folder}: what a killed run has left can't be removed: {error.strerror or error}"
        first = self._gathered(reason)[0]
        if first is not None:
            raise ArchcError(first)

    def latest(self) -> Path | None:
        """The newest finished checkpoint."""
        return latest(self.folder)

    def place(self, step: int) -> Path:
        """Where the checkpoint of a step is, once it is finished."""
        return self.folder / folder_of(step)

    def save(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, wait: bool = False) -> None:
        """Write the state after ``step`` optimizer steps; ``meta`` is plain data, and the first rank's is kept.

        Returns when the tensors have been copied, so that they may change, and the files are written in the background; with
        ``wait`` they are on the disk. An earlier save is waited for, so that one is on its way.

        Raises:
            ArchcError: this save, or the one before it, failed, on any rank; the checkpoints before it are whole.
        """
        self.finish()
        self._noted = None
        held = {name: tensor.detach() for name, tensor in tensors.items()}
        writer = ShardWriter(self.folder, step, meta, self._keep)
        options: dict[str, Any] = {
            "storage_writer": writer,
            "process_group": self._group,
            "no_dist": self._group is None,
        }
        _one_process_is_meant()
        if wait:
            try:
                dcp_save(held, **options)
            except (CheckpointException, RuntimeError, OSError) as error:
                raise self._failed(step, error) from error
            self._note(step)
            return
        stager = self._pinned or DefaultStager(StagingOptions(False, False, False, False))
        future = cast("Future[Any]", dcp_async_save(held, async_stager=stager, **options))
        if self._pinned is None:
            future.add_done_callback(lambda _: stager.close())
        self._pending = step, future

    def newly_finished(self) -> list[int]:
        """Steps whose checkpoints have got to the disk since this was asked last, without waiting.

        Raises:
            ArchcError: a save in the background has failed, and there is one rank. Several are told by their next save, together.
        """
        if self._pending is not None and self._pending[1].done():
            step, future = self._pending
            if self._is_alone:
                self.finish()
            elif future.exception() is None:
                self._note(step)
        found, self._finished = self._finished, []
        return found

    def finish(self) -> None:
        """Wait until what was saved is on the disk.

        Raises:
            ArchcError: it could not be written, on any rank.
        """
        if self._pending is None:
            return
        (step, future), self._pending = self._pending, None
        try:
            future.result()
        except (CheckpointException, RuntimeError, OSError) as error:
            raise self._failed(step, error) from error
        self._note(step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait, and let go of memory that was kept for copies. Where something ended the run already, that is what is said."""
        try:
            self.finish()
        except ArchcError:
            if error is None:
                raise
        finally:
            if self._pinned is not None:
                self._pinned.close()

    def load(self, path: str | Path | None, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Fill tensors from a checkpoint, or from the newest, in place, and give what was kept beside them.

        Each rank names what it holds, as plain tensors or as pieces (DTensors), however those were cut when they were saved. All
        ranks together name everything that is stored.

        Raises:
            ArchcError: files are missing or changed, or tensors don't fit; every reason is listed, on every rank, and nothing was
                filled.
        """
        place = at_step(self.folder, None) if path is None else Path(path)
        rank, world = (0, 1) if self._group is None else (dist.get_rank(self._group), dist.get_world_size(self._group))
        problems: list[str] = []
        found: Checkpoint | None = None
        try:
            found = Checkpoint.open(place)
            problems = found.problems(part=rank, parts=world)
            problems += found.misfits({name: _kind(tensor) for name, tensor in tensors.items()})
        except (ArchcError, OSError) as error:
            problems.append(str(error))
        reports: list[tuple[list[str], list[str]]] = self._gathered((problems, list(tensors)))
        told = [problem for some, _ in reports for problem in some]
        named = {name for _, names in reports for name in names}
        if found is not None:
            told += [f"{name} is in it, and nothing that this run holds" for name in found.tensors if name not in named]
        if told or found is None:
            raise ArchcError(f"{place} can't be loaded:\n  {listed(dict.fromkeys(told))}{self._others(place)}")
        read(found, tensors, group=self._group)
        return dict(found.meta)

    def _note(self, step: int) -> None:
        if step != self._noted:
            self._noted = step
            self._finished.append(step)

    @property
    def _is_alone(self) -> bool:
        return self._group is None or dist.get_world_size(self._group) == 1

    @property
    def _is_first(self) -> bool:
        return self._group is None or dist.get_rank(self._group) == 0

    def _gathered(self, mine: Any) -> list[Any]:
        if self._group is None:
            return [mine]
        found: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(found, mine, group=self._group)
        return found

    def _others(self, place: Path) -> str:
        """What there is beside a checkpoint that can't be loaded."""
        others = [path for path in steps_in(self.folder).values() if path != place]
        if not others:
            return ""
        onward = f": move {place.name} elsewhere to go on from it" if latest(self.folder) == place else ""
        return f"\n{others[-1]} is the newest other one{onward}"

    def _failed(self, step: int, error: BaseException) -> ArchcError:
        if self._is_first:
            # What is there of it takes room that the next one may need.
            shutil.rmtree(hidden(self.folder, step, SAVING), ignore_errors=True)
        last = latest(self.folder)
        kept = f"{last} is whole" if last is not None else "there is no earlier one"
        return ArchcError(f"the checkpoint of step {step} could not be written: {self._reason(error)}; {kept}")

    def _reason(self, error: BaseException) -> str:
        failures = error.failures if isinstance(error, CheckpointException) else {0: (error, None)}
        rank, (first, _) = next(iter(failures.items()))
        where = f"rank {rank}: " if self._group is not None and isinstance(error, CheckpointException) else ""
        if isinstance(first, OSError) and first.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.folder).free
            return f"{where}the disk of {self.folder} is full ({gib(free)} free)"
        return f"{where}{first}"


def read(found: Checkpoint, tensors: Mapping[str, Tensor], *, group: dist.ProcessGroup | None = None) -> None:
    """Fill tensors in place from a checkpoint that was looked at; other dtypes are converted to.

    Raises:
        ArchcError: a file can't be read.
    """
    _one_process_is_meant()
    try:
        dcp_load(
            {name: tensor.detach() for name, tensor in tensors.items()},
            storage_reader=HuggingFaceStorageReader(str(found.path)),
            process_group=group,
            no_dist=group is None,
        )
    except (CheckpointException, RuntimeError, OSError) as error:
        raise ArchcError(f"{found.path} can't be read: {error}") from error


def _kind(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return DTYPES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape)


def _one_process_is_meant() -> None:
    """torch warns of a save without ranks, each time, in whatever thread."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
