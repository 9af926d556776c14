"""Runs a file in a process of its own, which may die of it: ``python -m archc_exporters.onnx.check_child JOB``.

Imports stay few, onnxruntime and numpy, so that its memory is the file's. It prints one JSON object a line: ``at``, ``done`` and
``of`` as it goes, ``failed`` where the file is wrong, and at the end ``peak_bytes``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import onnxruntime as ort

from archc_exporters.onnx.session import Array, Conversation, load_session, run_whole
from archc_exporters.onnx.states import ENCODER, ENCODER_FILE


class Call(TypedDict):
    """New tokens (batch, seq), how many of each row are no padding, and the outputs a row that should come back."""

    ids: Sequence[Sequence[int]]
    valid: Sequence[int]
    columns: int


class Job(TypedDict):
    """What to run: conversations by name, each over caches of its own with ``capacity`` rows, outputs to ``keep``.

    ``keep`` is a folder for ``{name}.{number of the call}.npy``, or empty. 0 threads lets onnxruntime choose. Where ``caches``
    must be finite, so must every row, used or not. ``given`` is an .npz of what stays the same in all conversations, rows of
    it as many as they have at most: the tokens that an encoder reads, whose file lies beside the model's. ``passes`` are,
    by name, .npz of the inputs of a file that sees all tokens at once; its outputs are kept as ``{name}.npz``.
    """

    model: str
    capacity: int
    threads: int
    keep: str
    caches: bool
    talks: Mapping[str, Sequence[Call]]
    given: NotRequired[str]
    passes: NotRequired[Mapping[str, str]]


class RefusedError(Exception):
    """The file does not do what it should; the message says what."""


def run(job: Job, say: Callable[[str, int, int], None]) -> None:
    """Run a job; ``say`` hears what is done next, how many calls are done, and of how many.

    Raises:
        RefusedError: the file does not load or run, or gives another shape or numbers that are not finite.
    """
    passes = job.get("passes", {})
    total, done = sum(len(calls) for calls in job["talks"].values()) + len(passes), 0
    try:
        say("loading", done, total)
        path, given = Path(job["model"]), _arrays(job.get("given", ""))
        session = load_session(path, threads=job["threads"])
        reads = any(name.startswith(ENCODER) for name in given)
        encoder = load_session(path.with_name(ENCODER_FILE), threads=job["threads"]) if reads else None
        for name, feeds in passes.items():
            say(name, done, total)
            _pass(session, name, _arrays(feeds), job)
            done += 1
        for name, calls in job["talks"].items():
            batch = len(calls[0]["ids"])
            rows = {each: value[:batch] for each, value in given.items()}
            talk = Conversation(session, batch=batch, capacity=job["capacity"], encoder=encoder, given=rows)
            for number, call in enumerate(calls):
                say(name, done, total)
                _step(talk, name, number, call, job)
                done += 1
        say("run", done, total)
    except RefusedError:
        raise
    except Exception as error:  # onnxruntime raises a family of its own, based on Exception itself.
        raise RefusedError(f"onnxruntime refuses the file: {error}") from error


def _arrays(path: str) -> dict[str, Array]:
    if not path:
        return {}
    with np.load(path) as held:
        return dict(held)


def _pass(session: ort.InferenceSession, name: str, feeds: Mapping[str, Array], job: Job) -> None:
    outputs = run_whole(session, feeds)
    batch = len(next(iter(feeds.values())))
    for output, y in outputs.items():
        if len(y) != batch:
            raise RefusedError(f"{name}: a batch of {batch} gives {output} {y.shape}")
        if not np.isfinite(y).all():
            raise RefusedError(f"{name}: {output} has numbers that are not finite")
    if job["keep"]:
        np.savez(Path(job["keep"]) / f"{name}.npz", **outputs)  # pyright: ignore[reportArgumentType] - names of arrays


def _step(talk: Conversation, name: str, number: int, call: Call, job: Job) -> None:
    ids = np.asarray(call["ids"], np.int64)
    y = talk.step(ids, np.asarray(call["valid"], np.int64))
    batch, seq = ids.shape
    # Of a head over one vector a text, there is a row a text.
    if len(y) != batch or (y.ndim > 2 and y.shape[1] != call["columns"]):
        raise RefusedError(f"{name}: ({batch}, {seq}) tokens give {y.shape}, not ({batch}, {call['columns']}, ...)")
    if not np.isfinite(y).all():
        raise RefusedError(f"{name}: ({batch}, {seq}) tokens give numbers that are not finite")
    broken = [cache for cache, held in talk.caches.items() if not np.isfinite(held).all()]
    if broken and job["caches"]:
        raise RefusedError(f"{name}: caches are not finite: {', '.join(broken)}")
    if job["keep"]:
        np.save(Path(job["keep"]) / f"{name}.{number}.npy", y)


def peak_bytes() -> int | None:
    """Most memory that this process has held, None where the system doesn't say."""
    try:
        # Not getrusage: what it says of a child starts from what the parent held.
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return None


def _print(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main(path: str) -> None:
    """Run the job in a file of JSON."""
    try:
        run(json.loads(Path(path).read_text("utf-8")), lambda at, done, of: _print(at=at, done=done, of=of))
    except RefusedError as refused:
        _print(failed=str(refused))
    _print(peak_bytes=peak_bytes())


if __name__ == "__main__":
    main(sys.argv[1])
