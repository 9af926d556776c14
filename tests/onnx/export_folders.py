"""What the tests of export folders share: exports of small text files, whose they are, and a kill at a chosen step."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from archc_exporters.onnx.folder import require_place, staged

posix = pytest.mark.skipif(os.name != "posix", reason="needs fork, signals and permissions")
THEIRS = {"notes.txt": "mine", "runs/1/log.txt": "also mine"}


def write_export(stage: Path, mark: str, *names: str) -> None:
    """Files as an export makes them, all with one mark."""
    for name in (*names, "model.onnx", "model.onnx.data"):
        (stage / name).write_text(mark)
    files = {path.name: path.stat().st_size for path in stage.iterdir()}
    (stage / "archc.json").write_text(json.dumps({"files": files, "mark": mark}))


def write_theirs(out: Path) -> None:
    for name, text in THEIRS.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    """relative path -> text of every file."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def marks(out: Path) -> set[str]:
    """Whose export it is; more than one mark would be a mixture."""
    return {mark_of(text) for name, text in contents(out).items() if name not in THEIRS}


def visible(out: Path) -> set[str]:
    """The marks of files that lie in the folder itself."""
    return {mark_of(path.read_text()) for path in out.iterdir() if path.is_file() and path.name not in THEIRS}


def mark_of(text: str) -> str:
    return json.loads(text)["mark"] if text.startswith("{") else text


def export(out: Path, mark: str, *names: str, overwrite: bool = False) -> None:
    require_place(out, overwrite=overwrite)
    with staged(out, overwrite=overwrite) as stage:
        write_export(stage, mark, *names)


def fail(out: Path) -> None:
    """An export that fails when its files are there, but for the last."""
    with suppress(RuntimeError), staged(out) as stage:
        write_export(stage, "half")
        raise RuntimeError


@contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def forked() -> int:
    """Like ``os.fork``, in a process that has threads too: the child does no more than handle files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Run the work in a process that is killed before its ``step``-th change to the file system; whether it was."""
    child = forked()
    if child == 0:
        left = step
        changing = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.utime", "open"}

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in changing or event.startswith("ctypes"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
