"""A run in TensorBoard, by torch's own writer."""

from __future__ import annotations

from typing import Any

from archc.errors import MissingExtraError
from archc.training.watching.watcher import Quiet, Record, RunInfo, Sample

FOLDER = "tensorboard"
_BESIDE = ("step", "time")


class TensorBoard(Quiet):
    """Every number of a step as a scalar, every sample as a text, in ``RUN/tensorboard``.

    Raises:
        MissingExtraError: ``tensorboard`` is not installed.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboard", "a run in TensorBoard") from None
        self._make: Any = SummaryWriter
        self._writer: Any = None

    def on_start(self, run: RunInfo) -> None:
        assert run.folder is not None, "TensorBoard's files lie in a run's folder"
        # What a run that was killed wrote of later steps is hidden by TensorBoard itself.
        self._writer = self._make(str(run.folder / FOLDER), purge_step=run.first_step + 1)

    def on_step(self, record: Record) -> None:
        for name, value in record.items():
            if value is not None and name not in _BESIDE:
                self._writer.add_scalar(name, value, int(record["step"] or 0))

    def on_sample(self, sample: Sample) -> None:
        self._writer.add_text(sample.kind, f"{sample.prompt}{sample.text}", sample.step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
