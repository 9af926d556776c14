"""A folder that appears whole or not at all, and may replace what an earlier conversion wrote there."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from archc.checkpoint.reading import is_plain, read_json
from archc.errors import ArchcError

ORIGIN, SPEC = "checkpoint.json", "spec.yaml"
"""Beside archc's weights: what they came from and which files were written, and the spec."""


@contextmanager
def staged(out: Path, earlier_files: Callable[[Path], set[str]] | None = None) -> Iterator[Path]:
    """A folder beside ``out`` that becomes it when the block ends well.

    ``out`` is absent, empty, or holds an earlier conversion to archc: its files are replaced, others are kept. ``earlier_files``
    names those that another writer may replace in a folder that is not empty, or raises.

    Raises:
        ArchcError: ``out`` holds something else, or can't be written.
    """
    out = Path(os.path.realpath(out))
    try:
        earlier = _earlier(out, earlier_files or _of_conversion)
        out.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise _unwritable(out, error) from error
    try:
        yield stage
        os.chmod(stage, 0o755)
        _replace(out, stage, earlier)
    except BaseException as error:
        shutil.rmtree(stage, ignore_errors=True)
        if isinstance(error, OSError):
            raise _unwritable(out, error) from error
        raise


def digest(text: str) -> str:
    """What tells a text from a changed one."""
    return hashlib.sha256(text.encode()).hexdigest()


def _earlier(out: Path, earlier_files: Callable[[Path], set[str]]) -> set[str]:
    """Names of the files that were written earlier, none where there is no folder, or an empty one."""
    if not out.exists():
        return set()
    if not out.is_dir():
        raise ArchcError(f"{out} is a file; a folder is written")
    return earlier_files(out) if any(out.iterdir()) else set()


def _of_conversion(out: Path) -> set[str]:
    """What an earlier conversion wrote."""
    origin = read_json(out / ORIGIN) if (out / ORIGIN).is_file() else {}
    files, spec = origin.get("files"), origin.get("spec_sha256")
    if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
        raise ArchcError(f"{out} is there already and not empty; name another folder")
    if (out / SPEC).is_file() and digest((out / SPEC).read_text("utf-8")) != spec:
        raise ArchcError(f"{out / SPEC} was changed since it was written; move it away, or name another folder")
    return {ORIGIN, SPEC, *(name for name in files if is_plain(name))}


def _replace(out: Path, stage: Path, earlier: set[str]) -> None:
    if not out.exists():
        stage.rename(out)
        return
    own = [entry.name for entry in out.iterdir() if entry.name not in earlier]
    clash = [name for name in own if (stage / name).exists()]
    if clash:
        raise ArchcError(
            f"{out} holds files that would be written over: {', '.join(clash)}; move them, or name another folder"
        )
    aside = stage.with_name(f"{stage.name}.earlier")
    out.rename(aside)
    try:
        stage.rename(out)
    except BaseException:
        aside.rename(out)
        raise
    for name in own:
        (aside / name).rename(out / name)
    shutil.rmtree(aside)


def _unwritable(out: Path, error: OSError) -> ArchcError:
    return ArchcError(f"{out} can't be written: {error.strerror or error}")
