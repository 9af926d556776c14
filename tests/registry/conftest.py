"""Packages that are installed for one test: metadata in a folder on the path of another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[..., None]
Python = Callable[[str], str]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Write a distribution: its metadata, and its modules as name -> source."""

    def write(name: str, entry_points: str, *, version: str = "1.0", **modules: str) -> None:
        metadata = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(entry_points)
        for module, source in modules.items():
            (tmp_path / f"{module}.py").write_text(source)

    return write


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """What a new process prints that sees those distributions beside archc's own."""

    def run(code: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
