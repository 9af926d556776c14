"""The pages about growth and diagrams: their commands print what they show, and their table and figures are computed."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
Blocks = Callable[[str, str], list[str]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def growth() -> ModuleType:
    where = importlib.util.spec_from_file_location("growth", ROOT / "docs" / "growth.py")
    assert where is not None
    assert where.loader is not None
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


def test_the_command_prints_what_the_page_shows(blocks: Blocks, run: Run, tmp_path: Path):
    (line,) = blocks("complexity.md", "console")
    (shown,) = blocks("complexity.md", "text")
    done = run(line.removeprefix("$ "), tmp_path)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_the_table_is_the_one_that_is_computed(growth: ModuleType):
    page = growth.PAGE.read_text(encoding="utf-8")
    assert growth.page_text(page) == page, "run python docs/growth.py"


def test_every_mixer_of_the_specs_has_a_line(growth: ModuleType):
    page = growth.PAGE.read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if any(line.startswith(f"| {name} |") for name in growth.SPECS)]
    assert len(lines) >= len(growth.SPECS)
    assert "| kimi-linear-48b-a3b | kda (kda) | O(n) | O(1) | O(1) | mla | 2,464 | 344 | 1,885 |" in page


def test_every_figure_is_the_one_that_the_command_draws(growth: ModuleType, blocks: Blocks, run: Run, tmp_path: Path):
    lines = [line for block in blocks("diagrams.md", "console") for line in block.splitlines()]
    assert [line.split()[-1] for line in lines] == [growth.figure(name).name for name in growth.FIGURES]
    for line, name in zip(lines, growth.FIGURES, strict=True):
        done = run(line.removeprefix("$ "), tmp_path)
        assert done.returncode == 0, done.stderr
        drawn = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert drawn == growth.figure(name).read_text(encoding="utf-8"), "run python docs/growth.py"
