"""The tutorial, followed from the empty file to the exported model."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from archc.spec.load import load_spec

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
HEAVY = ("build", "export")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def follow(folder: Path, run: Run) -> int:
    """Do what the page says but for what is slow, and hold what it shows against what is printed; how many commands ran."""
    (folder / "hybrid.yaml").write_text("")
    printed, count = "", 0
    for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        text = match["text"]
        match match["language"]:
            case "yaml":
                (folder / ("hybrid-wide.yaml" if text.startswith("extends:") else "hybrid.yaml")).write_text(text)
            case "sh":
                lines = [line for line in text.splitlines() if line.split()[1] not in HEAVY]
                done = [run(line, folder) for line in lines]
                count += len(done)
                assert [each.stderr for each in done if "Traceback" in each.stderr] == []
                printed = "".join(each.stderr + each.stdout for each in done)
                # Only what shows its problems may fail.
                assert all(each.returncode == 0 for each in done) or "problem" in printed
            case "text":
                assert "".join(f"{line}\n" for line in text.splitlines()) in printed
            case _:
                assert match["language"] == "python"
    return count


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    folder = tmp_path_factory.mktemp("tutorial")
    assert follow(folder, run) == 14
    return folder


def test_the_commands_answer_as_the_page_shows(finished: Path):
    hybrid, wide = load_spec(finished / "hybrid.yaml"), load_spec(finished / "hybrid-wide.yaml")
    assert [plan.mixer for plan in hybrid.schedule()] == ["kda", "kda", "kda", "attn"] * 2
    assert [plan.ffn for plan in hybrid.schedule()] == ["mlp", *["moe"] * 7]
    assert (wide.stack.num_layers, wide.mixers["attn"].num_kv_heads, wide.mixers["kda"].num_heads) == (12, 2, 8)


@pytest.mark.torch
@pytest.mark.onnx
def test_the_model_is_built_exported_and_run(finished: Path, run: Run, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    page = PAGE.read_text(encoding="utf-8")
    lines = [line for found in BLOCK.finditer(page) if found["language"] == "sh" for line in found["text"].splitlines()]
    heavy = [line for line in lines if line.split()[1] in HEAVY]
    assert len(heavy) == 2
    for line in heavy:
        done = run(line, finished)
        assert done.returncode == 0, done.stderr
    (code,) = [found["text"] for found in BLOCK.finditer(page) if found["language"] == "python"]
    monkeypatch.chdir(finished)
    exec(compile(code, PAGE.name, "exec", dont_inherit=True), {})
