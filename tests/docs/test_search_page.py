"""The page about searching: its commands print what it shows, and its Python runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from archc.planning.search.sweep_costs import METRICS
from archc.spec.load import load_spec

Blocks = Callable[[str, str], list[str]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
PAGE = "search.md"


def test_every_command_prints_what_the_page_shows(blocks: Blocks, run: Run, tmp_path: Path):
    lines = [line for block in blocks(PAGE, "console") for line in block.splitlines()]
    for line, text in zip(lines, blocks(PAGE, "text"), strict=True):
        done = run(line.removeprefix("$ "), tmp_path)
        assert done.returncode == (2 if text.startswith("archc:") else 0), done.stderr
        assert text in (done.stderr if text.startswith("archc:") else done.stdout)
    assert load_spec(tmp_path / "seven.yaml").name == "seven"


def test_the_page_has_every_metric_and_column():
    text = (Path(__file__).parents[2] / "docs" / PAGE).read_text(encoding="utf-8")
    for metric, columns in METRICS.items():
        shown = ", ".join(f"`{column}_N`" if column.endswith("_at") else f"`{column}`" for column in columns)
        assert f"| `{metric}` | {shown} |" in text


def test_the_python_of_the_page_runs(blocks: Blocks):
    for text in blocks(PAGE, "python"):
        exec(compile(text, PAGE, "exec"), {})
