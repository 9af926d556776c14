"""The folder of an export: replaced as a whole, with the user's files in it, or left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from archc.errors import ArchcError
from archc_exporters.onnx import folder as folders
from archc_exporters.onnx.folder import staged
from tests.onnx.export_folders import (
    THEIRS,
    contents,
    export,
    fail,
    forked,
    marks,
    posix,
    standing_in,
    write_export,
    write_theirs,
)

pytestmark = pytest.mark.onnx

root = os.name == "posix" and os.geteuid() == 0


def test_an_export_is_replaced_whole_and_files_of_the_user_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(out, "old", "genai_config.json")
    write_theirs(out)
    (out / "link").symlink_to("notes.txt")
    (out / "tokenizer.json").write_text("brought by the user")
    export(out, "new", "spec.yaml")
    found = contents(out)
    assert marks(out) - {"brought by the user", "mine"} == {"new"}
    assert THEIRS.items() <= found.items()
    assert os.readlink(out / "link") == "notes.txt"
    assert found["tokenizer.json"] == "brought by the user"
    # The old export wrote it, the new one does not.
    assert "genai_config.json" not in found
    assert os.listdir(tmp_path) == ["out"]


def test_a_new_folder_is_made_with_those_above_it_and_goes_with_them_when_the_export_fails(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "out"
    fail(out)
    assert not os.listdir(tmp_path)
    export(out, "whole")
    assert marks(out) == {"whole"}
    assert out.stat().st_mode & 0o777 == 0o777 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_permissions_of_a_folder_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(out, "old")
    out.chmod(0o750)
    export(out, "new")
    assert out.stat().st_mode & 0o777 == 0o750


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    export(tmp_path / "out", "one")
    export(tmp_path / "out", "two")
    assert os.readlink(tmp_path / "out") == "real"
    assert marks(tmp_path / "real") == {"two"}


def test_a_folder_of_other_files_is_written_to_only_with_overwrite(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_theirs(out)
    (out / "model.onnx").write_text("of another tool")
    with pytest.raises(ArchcError) as caught:
        export(out, "refused")
    assert str(caught.value) == (
        f"{out} holds files and no export (model.onnx, notes.txt, runs); name another folder, or write there with --overwrite: "
        "files that an export has too are replaced, others stay"
    )
    assert contents(out) == {**THEIRS, "model.onnx": "of another tool"}
    export(out, "new", overwrite=True)
    assert marks(out) == {"new"}
    assert THEIRS.items() <= contents(out).items()


def test_an_archc_json_that_is_none_does_not_make_an_export(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"files": 3}'):
        (tmp_path / "archc.json").write_text(text)
        with pytest.raises(ArchcError, match="holds files and no export"):
            export(tmp_path, "refused")


def test_a_file_in_the_place_of_the_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ArchcError, match=r"out is a file; a folder is written"):
        export(tmp_path / "out", "x", overwrite=True)
    with pytest.raises(ArchcError, match=r"out is a file; a folder is written"):
        export(tmp_path / "out" / "inner", "x")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_folder_in_the_place_of_a_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out" / "model.onnx").mkdir(parents=True)
    (tmp_path / "out" / "model.onnx" / "mine").write_text("mine")
    with pytest.raises(ArchcError, match=r"out has a folder where a file is written: model\.onnx; nothing"):
        export(tmp_path / "out", "x", overwrite=True)
    assert contents(tmp_path) == {"out/model.onnx/mine": "mine"}


def test_a_shell_that_stands_in_the_folder_stays_in_it(tmp_path: Path) -> None:
    export(tmp_path, "old", "genai_config.json")
    write_theirs(tmp_path)
    inode = tmp_path.stat().st_ino
    with standing_in(tmp_path):
        export(Path(), "new")
        fail(Path())
    assert tmp_path.stat().st_ino == inode
    assert marks(tmp_path) == {"new"}
    assert contents(tmp_path).keys() == {"archc.json", "model.onnx", "model.onnx.data", *THEIRS}


def test_without_a_swap_in_one_step_the_folder_is_replaced_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on systems and file systems that have no renameat2.
    monkeypatch.setattr(folders, "exchange", lambda *_: False)
    out = tmp_path / "out"
    export(out, "old")
    write_theirs(out)
    export(out, "new")
    assert marks(out) == {"new"}
    assert THEIRS.items() <= contents(out).items()
    assert os.listdir(tmp_path) == ["out"]


def test_an_archc_json_names_no_files_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(out, "old")
    write_theirs(out)
    (tmp_path / "precious").write_text("mine")
    (out / "archc.json").write_text(
        json.dumps({"files": {"../precious": 4, "runs": 1, "..": 1, "/etc/passwd": 1, "": 1}})
    )
    for place in (tmp_path, out):
        with standing_in(place):
            export(out, "new", overwrite=True)
        assert (tmp_path / "precious").read_text() == "mine"
        assert THEIRS.items() <= contents(out).items()


@posix
def test_what_another_living_export_is_writing_is_left_alone(tmp_path: Path) -> None:
    with staged(tmp_path / "out") as first:
        write_export(first, "first")
        export(tmp_path / "out", "second")
        assert first.is_dir()
    assert marks(tmp_path / "out") == {"first"}
    assert os.listdir(tmp_path) == ["out"]


def as_nobody(target: Path) -> str:
    """What an export by a user without privileges to a folder says: nothing where it succeeds."""
    read, write = os.pipe()
    child = forked()
    if child == 0:
        message = ""
        try:
            if root:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            export(target, "new")
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


@pytest.fixture
def open_base() -> Iterator[Path]:
    """A folder that everybody can enter; pytest's own are its user's."""
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        yield Path(base)


@posix
@pytest.mark.parametrize("which", ["folder", "parent"])
def test_an_unwritable_folder_is_refused(open_base: Path, which: str) -> None:
    out = open_base / "parent" / "out"
    export(out, "old")
    for folder in (out, out.parent):
        folder.chmod(0o555)
    target = out if which == "folder" else out.parent / "other"
    message = as_nobody(target)
    for folder in (out.parent, out):
        folder.chmod(0o755)
    assert message.startswith(f"ArchcError: {target} can't be written: ")
    assert message.lower().endswith("permission denied; nothing in it was changed")
    assert marks(out) == {"old"}
    assert os.listdir(out.parent) == ["out"]


@posix
def test_a_folder_whose_parent_is_closed_is_written_from_inside(open_base: Path) -> None:
    out = open_base / "parent" / "out"
    export(out, "old")
    for path in (out, *out.iterdir()):
        path.chmod(0o777)
    out.parent.chmod(0o555)
    message = as_nobody(out)
    out.parent.chmod(0o755)
    assert message == ""
    assert marks(out) == {"new"}


def mount(folder: Path, megabytes: int) -> bool:
    """Whether a file system of that size could be mounted there."""
    if not (sys.platform == "linux" and root):
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "archc-test", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_mounted_folder_is_written_from_inside_and_one_that_holds_a_mount_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(out, "old")
    (out / "data").mkdir()
    for place in (out / "data", out):
        if not mount(place, 4):
            pytest.skip("no file system can be mounted here")
        try:
            if place == out:
                export(out, "inside")
                export(out, "again")
                assert marks(out) == {"again"}
            else:
                (place / "far").write_text("mine")
                with pytest.raises(ArchcError, match="another file system is mounted here; export to another folder"):
                    export(out, "refused")
                assert (place / "far").read_text() == "mine"
        finally:
            subprocess.run(["umount", str(place)], check=True)
    assert marks(out) == {"old"}
    assert os.listdir(tmp_path) == ["out"]
