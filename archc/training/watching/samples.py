"""``samples.jsonl`` of a run folder: what the model wrote at intervals."""

from __future__ import annotations

import os

from archc.training.watching.metrics import drop_after, write_line
from archc.training.watching.watcher import Quiet, RunInfo, Sample

SAMPLES = "samples.jsonl"


class SamplesFile(Quiet):
    """Appends a line a sample; a run that goes on drops those of later steps."""

    def __init__(self) -> None:
        self._file: int | None = None

    def on_start(self, run: RunInfo) -> None:
        assert run.folder is not None
        path = run.folder / SAMPLES
        drop_after(path, run.first_step)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def on_sample(self, sample: Sample) -> None:
        assert self._file is not None, "on_start opens the file"
        data = {name: getattr(sample, name) for name in sample.__dataclass_fields__}
        write_line(self._file, {**data, "ids": list(sample.ids)})

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
