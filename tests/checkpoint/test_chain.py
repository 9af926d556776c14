"""From a published folder to an exported model that writes: import, convert, export, run, beside transformers' generate."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

pytestmark = [pytest.mark.torch, pytest.mark.onnx]

CHAIN = (
    "llama",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "kimi_linear",
    "qwen3_next",
    "mamba2",
    "granitemoehybrid",
    "nemotron_h",
)
STRAIGHT = ("llama_full", "phi3", "qwen3_moe", "gpt_neox", "gpt_oss", "nemotron_h")
NEW = 20


def greedy(oracle: Any, prompt: Any) -> list[int]:
    """transformers' own greedy tokens, up to its end of text."""
    with torch.no_grad():
        return oracle.model.generate(prompt, max_new_tokens=NEW, do_sample=False)[0, prompt.shape[1] :].tolist()


def written(invoke: Callable[..., Any], folder: Path, prompt: Any) -> list[int]:
    ids = ",".join(map(str, prompt[0].tolist()))
    done = invoke("run", folder, "--prompt-ids", ids, "--max-new-tokens", NEW, "--ids", "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.output)["rows"][0]["ids"]


def run_all(invoke: Callable[..., Any], *lines: tuple[object, ...]) -> None:
    for line in lines:
        done = invoke(*line)
        assert done.exit_code == 0, done.output


PLACE = ("--provider", "cpu", "--dtype", "f32", "--no-check")


@pytest.mark.parametrize("name", CHAIN)
def test_a_published_folder_becomes_an_export_with_the_same_greedy_tokens(
    saved: Callable[..., Any], invoke: Callable[..., Any], name: str, tmp_path: Path
) -> None:
    oracle, folder = saved(name)
    spec, weights, exported = tmp_path / "spec.yaml", tmp_path / "weights", tmp_path / "exported"
    run_all(
        invoke,
        ("import", folder, "-o", spec),
        ("convert", folder, "-o", weights, "--max-shard-size", "60KB"),
        ("export", spec, "--weights", weights, "-o", exported, *PLACE),
    )
    for row in (0, 1):
        prompt = oracle.ids[row : row + 1, :12]
        assert written(invoke, exported, prompt) == greedy(oracle, prompt)


@pytest.mark.parametrize("name", STRAIGHT)
def test_a_published_folder_is_exported_straight_to_the_same_file(
    saved: Callable[..., Any], invoke: Callable[..., Any], name: str, tmp_path: Path
) -> None:
    _, folder = saved(name)
    weights = tmp_path / "weights"
    run_all(
        invoke,
        ("convert", folder, "-o", weights),
        ("export", weights / "spec.yaml", "--weights", weights, "-o", tmp_path / "two", *PLACE),
        ("export", weights / "spec.yaml", "--weights", folder, "-o", tmp_path / "one", *PLACE),
    )
    one, two = ((tmp_path / place / "model.onnx.data").read_bytes() for place in ("one", "two"))
    assert one == two
