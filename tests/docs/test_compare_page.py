"""The page about comparing: its commands print what it shows, and its Python runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Blocks = Callable[[str, str], list[str]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_every_command_prints_what_the_page_shows(blocks: Blocks, run: Run, tmp_path: Path):
    lines = [line for block in blocks("compare.md", "console") for line in block.splitlines()]
    shown = blocks("compare.md", "text")
    assert len(lines) == len(shown) + 1
    for line, text in zip(lines, shown, strict=False):
        done = run(line.removeprefix("$ "), tmp_path)
        assert done.returncode == 0, done.stderr
        assert text in done.stdout


def test_the_picture_is_drawn_by_the_command_beside_it(blocks: Blocks, run: Run, tmp_path: Path):
    pytest.importorskip("matplotlib")
    line = blocks("compare.md", "console")[-1].strip()
    done = run(line.removeprefix("$ "), tmp_path)
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "compare-plot.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 150_000


def test_the_python_of_the_page_runs(blocks: Blocks, tmp_path: Path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    for text in blocks("compare.md", "python"):
        exec(compile(text, "compare.md", "exec"), {})
    assert (tmp_path / "costs.svg").read_text(encoding="utf-8").startswith("<?xml")
