"""The page about plans: its commands run, its Python says what it says, its refusal is printed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Blocks = Callable[[str, str], list[str]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_commands_of_the_page_run(blocks: Blocks, run: Run, tmp_path: Path):
    lines = "\n".join(blocks("parallel.md", "sh")).splitlines()
    assert len(lines) == 3
    for line in lines:
        done = run(line, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


def test_the_refusal_is_printed_as_the_page_shows_it(blocks: Blocks, run: Run, tmp_path: Path):
    (line,), (text,) = blocks("parallel.md", "console"), blocks("parallel.md", "text")
    done = run(line.removeprefix("$ "), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", text)


def test_the_python_of_the_page_gives_what_it_says(blocks: Blocks):
    (code,) = blocks("parallel.md", "python")
    found: dict[str, Any] = {}
    exec("import archc\n" + code, found)
    plan = found["found"]
    assert plan.limits == []
    (line,) = [line for line in code.splitlines() if ".cuts" in line]
    value, _, said = line.partition("#")
    assert str(eval(value, found)) == said.strip()
    assert plan.weights[4].name == "mixer.q_proj.weight"
    assert plan.stages[0].weights.resident > 0
