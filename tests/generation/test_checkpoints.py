"""A folder that transformers saved, what archc convert makes of it, and what archc export makes of that, write what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.24")

from archc.cli.main import archc as program  # noqa: E402
from tests.parity.oracle import oracle_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.onnx]

FAMILIES = ("llama", "gemma3_text", "gpt_oss", "deepseek_v3", "kimi_linear", "qwen3_next")
NEW = 12


def invoke(*arguments: object) -> Any:
    done = CliRunner().invoke(program, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("name", FAMILIES)
def test_every_way_to_write_gives_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    oracle = oracle_of(name)
    oracle.model.save_pretrained(tmp_path / "theirs")
    prompts = [oracle.ids[0, :21].tolist(), oracle.ids[1, :9].tolist()]
    expected: list[list[int]] = []
    for prompt in prompts:
        made = oracle.model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, use_cache=False)
        expected.append(made[0, len(prompt) :].tolist())
    ours, exported = tmp_path / "ours", tmp_path / "exported"
    words = [word for prompt in prompts for word in ("--prompt-ids", ",".join(map(str, prompt)))]
    words += ["--max-new-tokens", str(NEW), "--chunk-size", "8", "--json"]

    def written(*command: object) -> list[list[int]]:
        return [row["ids"] for row in json.loads(invoke(*command, *words).stdout)["rows"]]

    invoke("convert", tmp_path / "theirs", "-o", ours)
    assert written("generate", tmp_path / "theirs", "--device", "cpu") == expected
    assert written("generate", ours, "--device", "cpu") == expected
    pytest.importorskip("onnxruntime")
    made_for = ("--provider", "cpu", "--dtype", "f32", "--no-check")
    invoke("export", ours / "spec.yaml", "--weights", ours, "-o", exported, *made_for)
    assert written("run", exported, "--provider", "cpu", "--threads", 1) == expected
