"""The folder of an export: made beside its place and put there as a whole, so that a reader finds the old one or the new one.

Files of the user's own that lie in it stay. What a killed export left behind is cleared by the next one to the same place.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from archc.errors import ArchcError
from archc_exporters.onnx.contract import CONTRACT
from archc_exporters.onnx.swap import ASIDE, exchange, is_abandoned, locked, move_in, move_out, replace_whole

_STAGE = ".archc-export-"
_MOUNTED = "another file system is mounted here; export to another folder"


def require_place(out: Path, *, overwrite: bool = False) -> None:
    """Say at once what ``staged`` would say later.

    Raises:
        ArchcError: ``out`` is a file or somebody else's folder, or can't be written.
    """
    place = Path(os.path.realpath(out))
    try:
        _clear(place)
        _require_ours(out, place, overwrite)
        _missing(place)
    except OSError as error:
        raise ArchcError(_described(error, out, None)) from error


@contextmanager
def staged(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write to, which becomes ``out`` when the block ends well and vanishes otherwise.

    An export that lies in ``out`` is replaced as a whole; files that are not its own are kept. A folder that holds files and
    no export is written to with ``overwrite`` only.

    Raises:
        ArchcError: ``out`` is a file or somebody else's folder, or can't be written; nothing in it was changed.
    """
    place = Path(os.path.realpath(out))
    made: list[Path] = []
    stage: Path | None = None
    try:
        _clear(place)
        _require_ours(out, place, overwrite)
        home = _home(place)
        made = _make(home)
        stage = home / f"{_prefix(place, home)}{secrets.token_hex(4)}"
        stage.mkdir()
        with locked(stage):
            yield stage
            _put(stage, place, home)
    except BaseException as error:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise ArchcError(_described(error, out, stage)) from error
        raise
    shutil.rmtree(stage, ignore_errors=True)


def _described(error: OSError, out: Path, stage: Path | None) -> str:
    """What the system said, of the file that the user knows."""
    name = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else str(out)
    if stage is not None and name.startswith(str(stage)):
        name = str(out) + name[len(str(stage)) :]
    return f"{out} can't be written: {name}: {error.strerror or error}; nothing in it was changed"


def _require_ours(out: Path, place: Path, overwrite: bool) -> None:
    if not place.exists():
        return
    if not place.is_dir():
        raise ArchcError(f"{out} is a file; a folder is written")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ArchcError(f"{out} can't be written: permission denied; nothing in it was changed")
    names = _names(place)
    if names and _files_of_export(place) is None and not overwrite:
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise ArchcError(
            f"{out} holds files and no export ({shown}); name another folder, or write there with --overwrite: files that an "
            "export has too are replaced, others stay"
        )


def _names(folder: Path) -> list[str]:
    """What lies in it, leftovers of exports aside."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(_STAGE))


def _files_of_export(folder: Path) -> set[str] | None:
    """Names of the files that an earlier export wrote; None where there is none."""
    try:
        data: Any = json.loads((folder / CONTRACT).read_text("utf-8"))
        # A path that leads elsewhere is no file of an export, whoever wrote it there.
        return {
            name for name in (CONTRACT, *map(str, data["files"])) if name == os.path.basename(name) not in ("", "..")
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _home(place: Path) -> Path:
    """Where the new folder is made: beside its place, or inside it where the place itself can't be renamed."""
    if not place.exists():
        return place.parent
    fixed = os.path.ismount(place) or not os.access(place.parent, os.W_OK | os.X_OK)
    # A shell that stands in a folder would find itself in the old one.
    return place if fixed or Path.cwd().is_relative_to(place) else place.parent


def _prefix(place: Path, home: Path) -> str:
    return _STAGE if home == place else f".{place.name}{_STAGE}"


def _make(home: Path) -> list[Path]:
    """Make the folder and those above it; the ones that were made, the topmost first."""
    missing = _missing(home)
    home.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _missing(folder: Path) -> list[Path]:
    """The folder and those above it that are not there, from the folder up."""
    above = [folder, *folder.parents]
    missing = above[: next(number for number, path in enumerate(above) if os.path.lexists(path))]
    there = above[len(missing)]
    if not there.is_dir():
        raise ArchcError(f"{there} is a file; a folder is written")
    return missing


def _put(stage: Path, place: Path, home: Path) -> None:
    """The new folder takes its place; ``stage`` then holds what was there before, if it is still there."""
    if not place.exists():
        stage.rename(place)
        return
    old = {name for name in _files_of_export(place) or () if not _is_folder(place / name)}
    new = _names(stage)
    folders = [name for name in new if _is_folder(place / name)]
    if folders:
        raise ArchcError(
            f"{place} has a folder where a file is written: {', '.join(folders)}; nothing in it was changed"
        )
    if home == place:
        move_in(stage, place, new, {*old, *new})
        return
    for name in _names(place):
        if name not in old and name not in new:
            _keep(place / name, stage / name)
    with suppress(OSError):
        shutil.chown(stage, place.stat().st_uid, place.stat().st_gid)
    shutil.copystat(place, stage)
    os.utime(stage)
    if not exchange(stage, place):
        replace_whole(stage, place)


def _keep(source: Path, target: Path) -> None:
    """A user's file or folder in the new folder too: the same files under a second name, so that nothing can be lost."""
    if not _is_folder(source):
        _link(source, target)
        return
    if os.path.ismount(source):
        raise OSError(errno.EXDEV, _MOUNTED, str(source))
    target.mkdir()
    for entry in source.iterdir():
        _keep(entry, target / entry.name)
    shutil.copystat(source, target)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno == errno.EXDEV:
            raise OSError(errno.EXDEV, _MOUNTED, str(source)) from error
        shutil.copy2(source, target, follow_symlinks=False)


def _clear(place: Path) -> None:
    """Undo what a killed export to this place left half done, and remove what it left over."""
    for name in _listed(place):
        if name.startswith(_STAGE) and is_abandoned(place / name):
            # Its archc.json is the last file to be moved: without it the others are in their places.
            unfinished = _files_of_export(place / name)
            if unfinished is not None:
                move_out(place / name, place, unfinished)
            shutil.rmtree(place / name, ignore_errors=True)
    # Sorted, so that what was moved aside is back before the stage that was to replace it goes.
    for name in sorted(_listed(place.parent)):
        leftover = place.parent / name
        if name.startswith(f".{place.name}{ASIDE}"):
            _put_back(leftover, place, _stage_of(leftover, place))
        elif name.startswith(f".{place.name}{_STAGE}") and is_abandoned(leftover):
            shutil.rmtree(leftover, ignore_errors=True)


def _stage_of(aside: Path, place: Path) -> Path:
    return place.with_name(f".{place.name}{_STAGE}{aside.name.rpartition('-')[2]}")


def _put_back(aside: Path, place: Path, stage: Path) -> None:
    """A folder that was moved aside: back to its place where its successor never arrived, else removed."""
    if not stage.exists():
        shutil.rmtree(aside, ignore_errors=True)
        return
    if not is_abandoned(stage):
        return
    if place.is_dir() and not os.listdir(place):
        place.rmdir()
    if place.exists():
        raise ArchcError(
            f"an interrupted export left what was in {place} in {aside}; keep what you need of it and remove it"
        )
    aside.rename(place)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
