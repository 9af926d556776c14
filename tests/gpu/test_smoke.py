"""The script for a GPU, run without one: all of its code but the provider, and what it says where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.onnx, pytest.mark.torch]
pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from archc_exporters.runtime.provider import cuda_devices  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_smoke.py"


def run(*words: str, out: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OUT": str(out)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, env=environment, timeout=280
    )


def test_the_script_runs_on_the_cpu(tmp_path: Path) -> None:
    done = run("--provider", "cpu", "--small", out=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary == json.loads((tmp_path / "gpu_smoke.json").read_text())
    sections = summary["sections"]
    assert {case["family"] for case in sections["values"]["cases"]} == {"llama", "gpt-oss"}
    assert {name: model["away"] for name, model in sections["speed"]["models"].items()} == {"llama": [], "hybrid": []}
    assert not [one for one in sections["context"]["runs"] if "error" in one]
    # Rows of latent attention alone take four times the room of one such layer in four.
    sizes = {
        (one["name"], one["context"]): one["cache_bytes"] for one in sections["context"]["runs"] if "context" in one
    }
    grown = {name: sizes[name, 512] - sizes[name, 128] for name in ("hybrid", "all latent")}
    assert grown["all latent"] == 4 * grown["hybrid"] > 0


def test_a_section_without_time_fails_and_is_said(tmp_path: Path) -> None:
    done = run("--provider", "cpu", "--small", "--only", "context,speed", "--seconds", "1", out=tmp_path)
    sections = json.loads(done.stdout.splitlines()[-1])["sections"]
    assert done.returncode == 1
    assert {name: section["error"] for name, section in sections.items()} == dict.fromkeys(sections, "no time was left")


@pytest.mark.skipif(bool(cuda_devices()), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_run_and_one_line_says_why(tmp_path: Path) -> None:
    done = run(out=tmp_path)
    assert done.returncode == 2
    assert "nothing was run" in done.stdout
    assert len(done.stdout.splitlines()) == 1
