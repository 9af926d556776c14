"""archc export --verify, from the command line."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from archc_exporters.onnx import lower, norm

pytestmark = [pytest.mark.onnx, pytest.mark.torch]


def test_verify_prints_differences_and_what_they_may_be(invoke: Callable[..., Result], tmp_path: Path) -> None:
    result = invoke("export", "tiny-llama", "-o", tmp_path / "out", "--dtype", "f32", "--verify")
    assert result.exit_code == 0, result.output
    assert "differences from torch, and what they may be" in result.output
    for way in ("prefill of 44", "chunk of 12 over 12, 1 more", "rows of 12 and 7, 2 more", "32 decode steps after 12"):
        assert way in result.output
    assert "in a process of its own" in result.output


def test_verify_gives_figures_to_programs(invoke: Callable[..., Result], tmp_path: Path) -> None:
    result = invoke("export", "tiny-llama", "-o", tmp_path / "out", "--dtype", "f32", "--verify", "--json")
    report = json.loads(result.stdout)
    assert len(report["comparisons"]) == 4
    assert all(each["relative"] < 2e-5 for each in report["comparisons"])
    assert report["seconds_writing"] > 0 < report["seconds_checking"]


def test_a_mismatch_is_exit_1_and_the_folder_stays_as_it_was(
    invoke: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ("export", "tiny-llama", "-o", out, "--dtype", "f32")
    assert invoke(*arguments, "--seed", 1).exit_code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def slightly_wrong(ctx: Any, node: Any, *inputs: Any) -> Any:
        result = norm.rms_norm(ctx, node, *inputs)
        return ctx.op("Mul", result, ctx.scalar(1.001))

    real = lower._lowering_of
    monkeypatch.setattr(
        lower,
        "_lowering_of",
        lambda scope, node: slightly_wrong if node.op.op_name == "rms_norm" else real(scope, node),
    )
    # Without the comparison nobody sees it.
    assert invoke("export", "tiny-llama", "-o", tmp_path / "other", "--dtype", "f32").exit_code == 0
    result = invoke(*arguments, "--verify")
    assert result.exit_code == 1
    assert "archc: tiny-llama: the file's outputs are not torch's (float32)" in result.stderr
    assert "32 decode steps after 12: max" in result.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_verify_and_no_check_contradict_each_other(invoke: Callable[..., Result], tmp_path: Path) -> None:
    result = invoke("export", "tiny-llama", "-o", tmp_path / "out", "--verify", "--no-check")
    assert result.exit_code == 2
    assert "--verify runs the written file, --no-check forbids it" in result.stderr
    assert not (tmp_path / "out").exists()


def test_verify_says_what_to_install_before_it_writes(
    invoke: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    result = invoke("export", "tiny-llama", "-o", tmp_path / "out", "--verify")
    assert result.exit_code == 2
    assert "archc export --verify needs the extra 'torch'" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_graph_without_weights_is_compared_by_its_twin(invoke: Callable[..., Result], tmp_path: Path) -> None:
    arguments = ("--no-weights", "--dtype", "bf16", "--verify", "--json")
    result = invoke("export", "tiny-kimi-linear", "-o", tmp_path / "out", *arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["checks"][1] == "not run: the weights are not in the file"
    assert report["checks"][2].startswith("float32 twin, ")
    assert all(each["relative"] < 2e-5 for each in report["comparisons"])
