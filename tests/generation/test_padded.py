"""A vocabulary that is padded for the hardware: the padding is cut on export, and both runtimes write the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import archc
from archc.spec.resolved import resolved
from archc_exporters.onnx.export import export
from tests.generation.conftest import PADDED

pytestmark = [pytest.mark.torch, pytest.mark.onnx]


def test_an_export_has_logits_of_the_ids_alone_and_writes_what_torch_does(padded: Any, tmp_path: Path) -> None:
    spec, weights, out = tmp_path / "spec.yaml", tmp_path / "weights.safetensors", tmp_path / "out"
    spec.write_text(PADDED)
    archc.save_weights(padded, weights)
    assert padded.lm_head.weight.shape[0] == 320
    given = resolved(spec)
    export(archc.expand(given.spec), out, provider="cpu", dtype="float32", weights=weights, spec=given, check=False)
    told = json.loads((out / "archc.json").read_text("utf-8"))
    assert told["vocab_size"] == 257
    assert [output["shape"][-1] for output in told["outputs"]] == [257]
    exported = archc.load(out, provider="cpu", threads=1)
    prompts = ["harbour", "海港", [256, 65]]
    for options in ({}, {"temperature": 2.0, "min_p": 0.01, "seed": 3}, {"repetition_penalty": 1.5}):
        made = exported.generate(prompts, max_new_tokens=20, stop_ids=[], **options)
        judge = archc.generate(padded, made.prompts, max_new_tokens=20, **options)
        assert made.ids == judge.ids
        assert max(max(row) for row in made.ids) < 257
