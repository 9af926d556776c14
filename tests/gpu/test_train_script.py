"""The script that trains on a GPU, run without one: all of its code at a tiny size, and what it says where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_train.py"


def run(*words: str, out: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OUT": str(out), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, env=environment, timeout=580, check=False
    )


def test_the_script_runs_on_the_cpu(tmp_path: Path) -> None:
    done = run("--cpu", "--seconds", "500", out=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary == json.loads((tmp_path / "gpu_train.json").read_text())
    sections = summary["sections"]
    values = {(one["model"], one["dtype"]): one for one in sections["values"]["runs"]}
    assert values["llama", "float32"]["apart"] == 0 == values["hybrid", "float32"]["apart"]
    assert 0 < values["hybrid", "bfloat16"]["apart"] < 0.1
    assert [one["recompute"] for one in sections["llama"]["runs"]] == ["none", "none", "selective"]
    # Recomputation gives the same losses to the last bit.
    for name in ("llama", "hybrid"):
        assert len({one["last_loss"] for one in sections[name]["runs"]}) == 1
        assert all(one["tokens_per_s"] > 0 and one["estimated_bytes"] > 0 for one in sections[name]["runs"])


def test_a_section_without_time_fails_and_is_said(tmp_path: Path) -> None:
    done = run("--cpu", "--only", "values,hybrid", "--seconds", "1", out=tmp_path)
    sections = json.loads(done.stdout.splitlines()[-1])["sections"]
    assert done.returncode == 1
    assert {name: section["error"] for name, section in sections.items()} == dict.fromkeys(sections, "no time was left")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_run_and_one_line_says_why(tmp_path: Path) -> None:
    done = run(out=tmp_path)
    assert done.returncode == 2
    assert "nothing was run" in done.stdout
    assert len(done.stdout.splitlines()) == 1
