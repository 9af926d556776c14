"""What the tests of the pages share: their code blocks, and running the commands that they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def blocks() -> Callable[[str, str], list[str]]:
    """The code blocks of a page in one language, in order."""

    def found(page: str, language: str) -> list[str]:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        return [match["text"] for match in BLOCK.finditer(text) if match["language"] == language]

    return found


@pytest.fixture(scope="session")
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run one line that a page prints (``archc ...``) in a folder."""

    def done(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
        first, *words = shlex.split(line, comments=True)
        assert first == "archc", line
        return subprocess.run([sys.executable, "-m", "archc", *words], cwd=folder, capture_output=True, text=True)

    return done
