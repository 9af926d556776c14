"""Exports that are killed: the folder has one export whole, the user's files, and no leftovers after the next one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from archc.errors import ArchcError
from archc_exporters.onnx import folder as folders
from tests.onnx.export_folders import (
    THEIRS,
    contents,
    export,
    fail,
    killed_at,
    marks,
    posix,
    standing_in,
    visible,
    write_theirs,
)

pytestmark = pytest.mark.onnx


@posix
@pytest.mark.parametrize("steps", ["one step", "two steps"])
def test_a_kill_at_any_moment_leaves_one_export_whole_and_the_next_one_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    if steps == "two steps":
        monkeypatch.setattr(folders, "exchange", lambda *_: False)
    out = tmp_path / "out"
    seen: list[set[str]] = []
    absent, killed = 0, True
    while killed:
        export(out, "old", "genai_config.json")
        write_theirs(out)
        killed = killed_at(len(seen), lambda: export(out, "new", "spec.yaml"))
        if not out.exists():
            absent += 1
            # Somebody looks for it and makes it anew; the next export finds the old one all the same, even if it fails.
            out.mkdir()
            fail(out)
        assert THEIRS.items() <= contents(out).items()
        assert {"archc.json", "model.onnx", "model.onnx.data"} < contents(out).keys()
        seen.append(marks(out))
        assert len(seen[-1]) == 1
        export(out, "next")
        assert marks(out) == {"next"}
        assert THEIRS.items() <= contents(out).items()
        assert os.listdir(tmp_path) == ["out"]
    assert absent == (steps == "two steps")
    assert len(seen) > 20
    assert seen[0] == {"old"}
    assert seen[-1] == {"new"}


@posix
def test_what_was_moved_aside_is_kept_where_another_folder_took_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "exchange", lambda *_: False)
    out = tmp_path / "out"
    step = 0
    while out.exists() or step == 0:
        export(out, "old")
        killed_at(step, lambda: export(out, "new"))
        step += 1
    out.mkdir()
    (out / "somebody's").write_text("file")
    before = contents(tmp_path)
    with pytest.raises(
        ArchcError, match=r"an interrupted export left what was in .*out in .*archc-before-.*; keep what you need"
    ):
        export(out, "next")
    assert contents(tmp_path) == before


@posix
def test_a_kill_inside_a_folder_that_stays_is_undone_by_the_next_export_even_if_that_is_killed(tmp_path: Path) -> None:
    names = {"archc.json", "model.onnx", "model.onnx.data"}
    with standing_in(tmp_path):
        steps, killed = 0, True
        while killed:
            for again in (6, 14):
                export(tmp_path, "old", "genai_config.json", overwrite=True)
                write_theirs(tmp_path)
                killed = killed_at(steps, lambda: export(tmp_path, "new", "spec.yaml"))
                whole = "archc.json" in os.listdir(tmp_path)
                assert not whole or visible(tmp_path) in ({"old"}, {"new"})
                killed_at(again, lambda: fail(tmp_path))
                fail(tmp_path)
                assert marks(tmp_path) == ({"old"} if killed and not whole else visible(tmp_path))
                assert contents(tmp_path).keys() - {"genai_config.json", "spec.yaml"} == {*names, *THEIRS}
            steps += 1
        assert visible(tmp_path) == {"new"}
    assert steps > 20
