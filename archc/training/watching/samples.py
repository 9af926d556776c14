"""``samples.jsonl`` of a run folder: what the model wrote at intervals."""

from __future__ import annotations

import os

from archc.training.watching.metrics import opened, write_line
from archc.training.watching.watcher import Quiet, RunInfo, Sample

SAMPLES = "samples.jsonl"


class SamplesFile(Quiet):
    """Appends a line a sample; a run that goes on drops those of later steps."""

    def __init__(self) -> None:
        self._file: int | None = None

    def on_start(self, run: RunInfo) -> None:
        assert run.folder is not None, "a file of samples lies in a run's folder"
        self._file = opened(run.folder / SAMPLES, run.first_step)

    def on_sample(self, sample: Sample) -> None:
        assert self._file is not None, "on_start opens the file"
        data = {name: getattr(sample, name) for name in sample.__dataclass_fields__}
        write_line(self._file, {**data, "ids": list(sample.ids)})

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
