"""A file is tried in a child process: a crash of onnxruntime becomes an error, and its memory is not the exporter's."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from archc.errors import CheckFailedError
from archc_exporters.onnx import check_child
from archc_exporters.onnx.arrays import Array
from archc_exporters.onnx.check_child import Call, Job
from archc_exporters.onnx.write import Progress

_START_SECONDS = 300.0
_BYTES_A_SECOND = 10e6
"""A slow disk and a slow CPU are given so long: what reads, packs and multiplies the weights a few times."""
_SAID_CHARACTERS = 2000

Talks = Mapping[str, Sequence[Call]]
Feeds = Mapping[str, Array]
"""Inputs of a file by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a trial took, start of the process included; None bytes where the system doesn't say."""

    seconds: float
    peak_bytes: int | None


def time_limit_seconds(weight_bytes: int) -> float:
    """After this long without an end a trial is given up."""
    return _START_SECONDS + weight_bytes / _BYTES_A_SECOND


def try_file(
    path: Path,
    talks: Talks,
    *,
    capacity: int,
    limit_seconds: float,
    keep: Path | None = None,
    finite_caches: bool = True,
    progress: Progress | None = None,
    given: Feeds | None = None,
    passes: Mapping[str, Feeds] | None = None,
) -> Cost:
    """Run conversations on the file in a child process; outputs go to the folder ``keep`` as ``{name}.{call}.npy``.

    ``given`` and ``passes`` are those of a ``Job``, as arrays.

    Raises:
        CheckFailedError: the file does not load or run, its numbers are not finite, the process died or took too long.
    """
    started = time.perf_counter()
    job = Job(model=str(path), capacity=capacity, threads=0, keep=str(keep or ""), caches=finite_caches, talks=talks)
    with tempfile.TemporaryDirectory(prefix="archc-check-") as folder:
        job |= saved(Path(folder), given, passes)
        order = Path(folder) / "job.json"
        order.write_text(json.dumps(job), encoding="utf-8")
        peak = _follow(path.name, order, started + limit_seconds, limit_seconds, progress)
    return Cost(seconds=time.perf_counter() - started, peak_bytes=peak)


def saved(folder: Path, given: Feeds | None, passes: Mapping[str, Feeds] | None) -> Any:
    """The entries of a ``Job`` for arrays, which are written into a folder."""

    def save(name: str, feeds: Feeds) -> str:
        path = folder / f"{name}.npz"
        np.savez(path, **feeds)  # pyright: ignore[reportArgumentType] - names of arrays
        return str(path)

    found: dict[str, Any] = {"given": save("given", given)} if given else {}
    if passes:
        found["passes"] = {name: save(f"pass {number}", feeds) for number, (name, feeds) in enumerate(passes.items())}
    return found


def _follow(name: str, order: Path, deadline: float, limit_seconds: float, progress: Progress | None) -> int | None:
    """Peak bytes of the child, once it has said that all is well."""
    at = "starting"
    with order.with_name("stderr").open("w+b") as stderr, _child(order, stderr) as (child, lines):
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.perf_counter()))
            except queue.Empty:
                raise CheckFailedError(
                    f"{name}: onnxruntime did not finish within {limit_seconds:g} s (it was {at})"
                ) from None
            if line is None:
                raise CheckFailedError(f"{name}: {_end(child)} while {at}{_said(stderr)}")
            said = _parsed(line)
            if "failed" in said:
                raise CheckFailedError(f"{name}: {said['failed']}")
            if "peak_bytes" in said:
                return said["peak_bytes"]
            if "at" in said:
                at = said["at"]
                if progress is not None:
                    progress(f"(check: {at})", said["done"], said["of"])


@contextmanager
def _child(order: Path, stderr: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], queue.Queue[bytes | None]]]:
    """The process and the lines that it prints, None after the last. It doesn't outlive the block."""
    # -P: nothing in the folder where the user happens to be is imported.
    command = [sys.executable, "-P", "-m", check_child.__name__, str(order)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr)
    assert child.stdout is not None
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read(pipe: IO[bytes]) -> None:
        for line in pipe:
            lines.put(line)
        child.wait()
        lines.put(None)

    reader = threading.Thread(target=read, args=(child.stdout,), daemon=True)
    reader.start()
    try:
        yield child, lines
    finally:
        child.kill()
        reader.join()
        child.stdout.close()


def _parsed(line: bytes) -> dict[str, Any]:
    """What the child says; libraries may print lines of their own."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _end(child: subprocess.Popen[bytes]) -> str:
    code = child.returncode
    if code >= 0:
        return f"the process that runs the file ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", as a system does when memory runs out," if name == "SIGKILL" else ""
    return f"onnxruntime's process was ended by {name}{hint}"


def _said(stderr: IO[bytes]) -> str:
    stderr.seek(0)
    text = stderr.read().decode("utf-8", "replace").strip()
    return f": {text[-_SAID_CHARACTERS:]}" if text else ""
