"""The page about memory of training shows what its commands print."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

Blocks = Callable[[str, str], list[str]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_commands_print_what_the_page_shows(blocks: Blocks, run: Run, tmp_path: Path):
    lines, shown = blocks("training-memory.md", "console"), blocks("training-memory.md", "text")
    for line, text, code in zip(lines, shown, (0, 2), strict=True):
        done = run(line.removeprefix("$ "), tmp_path)
        assert done.returncode == code, done.stderr
        assert (done.stderr if code else done.stdout) == text
