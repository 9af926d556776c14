"""The page about estimates shows what its command prints, its Python runs, and it names every quantity."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from archc.estimation.estimate import estimate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "estimate.md"
Blocks = Callable[[str, str], list[str]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_command_prints_what_the_page_shows(blocks: Blocks, run: Run, tmp_path: Path):
    (line,), (text,) = blocks("estimate.md", "console"), blocks("estimate.md", "text")
    done = run(line.removeprefix("$ "), tmp_path)
    assert (done.returncode, done.stdout.splitlines()) == (0, text.splitlines())


def test_the_python_of_the_page_runs(blocks: Blocks):
    (code,) = blocks("estimate.md", "python")
    exec(compile(code, "estimate.md", "exec"), {})


def test_the_page_names_every_quantity():
    text = PAGE.read_text("utf-8")
    for name in estimate("t5-base").quantities():
        section, _, field = name.removesuffix("_dense").partition(".")
        assert f"{section}.{field}" in text or f"`.{field}`" in text, name
