"""The page about weights: its commands run as they are printed, and leave the files that it names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.onnx, pytest.mark.torch]


def test_what_the_page_prints_runs(
    blocks: Callable[[str, str], list[str]], run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    (lines,) = blocks("weights.md", "console")
    for line in lines.splitlines():
        done = run(line.removeprefix("$ "), tmp_path)
        assert done.returncode == 0, done.stderr
    assert set(os.listdir(tmp_path / "out")) == {"archc.json", "model.onnx", "model.onnx.data", "spec.yaml"}
    assert set(os.listdir(tmp_path / "graph")) == {"archc.json", "model.onnx", "spec.yaml"}
