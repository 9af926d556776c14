"""``archc build`` and ``archc export``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from archc.estimation.estimate import estimate
from archc.spec.load import load_spec

Invoke = Callable[..., Result]


@pytest.mark.torch
def test_a_big_model_is_built_on_meta_and_equals_its_estimate(invoke: Invoke):
    pytest.importorskip("torch")
    result = invoke("build", "kimi-linear-48b-a3b", "--max-model-len", 1000)
    assert result.exit_code == 0
    assert "3,7,11,15,19,23,26: " in result.stdout
    assert "DIFFERENT" not in result.stdout
    assert result.stdout.count("49,122,675,072") == 2


@pytest.mark.torch
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt-oss", "tiny-deepseek-v3", "tiny-kimi-linear"])
def test_parameters_and_cache_bytes_are_exactly_the_built_ones(invoke: Invoke, name: str):
    pytest.importorskip("torch")
    data = json.loads(invoke("build", name, "--max-model-len", 77, "--json").stdout)
    for quantity in ("parameters", "cache_bytes"):
        assert data[quantity]["built"] == data[quantity]["estimated"] > 0


def weights(path: Path) -> bytes:
    """What follows the header of a safetensors file."""
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


@pytest.mark.torch
def test_written_files_are_whole_and_the_same_for_one_seed(invoke: Invoke, tmp_path: Path):
    pytest.importorskip("safetensors")
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert invoke("build", "tiny-kimi-linear", "-o", tmp_path / folder, "--seed", seed).exit_code == 0
    names = ["graph.json", "model.safetensors", "spec.yaml"]
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == names
    a, b, c = (weights(tmp_path / folder / "model.safetensors") for folder in "abc")
    assert a == b != c
    assert len(a) == estimate("tiny-kimi-linear").weights.bytes
    assert load_spec(tmp_path / "a" / "spec.yaml") == load_spec("tiny-kimi-linear")
    assert json.loads((tmp_path / "a" / "graph.json").read_text())["name"] == "tiny-kimi-linear"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.torch
def test_weights_that_do_not_fit_are_refused_before_they_are_made(invoke: Invoke, tmp_path: Path):
    pytest.importorskip("torch")
    result = invoke("build", "kimi-k2", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "TiB" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
def test_weights_on_meta_cannot_be_written(invoke: Invoke, tmp_path: Path):
    assert invoke("build", "tiny-llama", "-o", tmp_path / "out", "--device", "meta").exit_code == 2


@pytest.mark.parametrize(("command", "extra"), [("build", "torch"), ("export", "onnx")])
def test_a_missing_extra_is_one_line_that_says_what_to_install(command: str, extra: str, tmp_path: Path):
    output = ["-o", str(tmp_path / "out")]
    code = (
        "import importlib.util, sys\n"
        "known = importlib.util.find_spec\n"
        "missing = ('torch', 'onnx', 'onnxruntime')\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in missing else known(name, *rest)\n"
        f"sys.argv = ['archc', {command!r}, 'tiny-llama', *{output!r}]\n"
        "from archc.cli.main import run\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"archc: archc {command} needs the extra '{extra}': pip install 'archc-compiler[{extra}]'\n"


@pytest.mark.onnx
def test_an_export_says_which_caches_a_caller_must_bring(invoke: Invoke, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    result = invoke("export", "tiny-kimi-linear", "-o", tmp_path / "out", "--dtype", "f32")
    assert result.exit_code == 0, result.stderr
    assert "past_key_values.{3,7}.latent" in result.stdout
    assert (tmp_path / "out" / "model.onnx").is_file()
    data = json.loads(invoke("export", "tiny-llama", "-o", tmp_path / "b", "--no-check", "--json").stdout)
    assert data["name"] == "tiny-llama"
