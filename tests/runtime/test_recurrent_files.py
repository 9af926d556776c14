"""A recurrent decoder and its encoder as files: their answers are torch's."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from archc.expansion import as_graph  # noqa: E402
from archc.spec.resolved import resolved  # noqa: E402
from archc.torch_backend.build import build  # noqa: E402
from archc.torch_backend.generate import generate  # noqa: E402
from archc.torch_backend.weights import save_weights  # noqa: E402
from archc_exporters.onnx.export import export  # noqa: E402
from archc_exporters.runtime.model import load  # noqa: E402
from tests.onnx.conftest import draw  # noqa: E402

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

SPEC = """
spec_version: 1
name: small-translator
dtype: float32
tokenizer: {kind: word, vocab_size: 40, bos_token_id: 1}
embedding: {hidden_size: 16, tie_word_embeddings: false}
position: none
norm: none
mixers:
  reader: {kind: gru, hidden_size: 12, bidirectional: true}
  writer: {kind: attention_gru, hidden_size: 12, score: {kind: additive, hidden_size: 8}}
encoder: {num_layers: 1, block: plain, mixer: reader, ffn: none}
decoder: {num_layers: 1, block: plain, mixer: writer, ffn: none}
head: {kind: maxout_lm, hidden_size: 20}
"""
PROMPTS = [[5, 9, 11, 2, 7], [3, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9]]


def test_texts_of_any_length_are_answered_as_torch_answers_them(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC, "utf-8")
    spec = resolved(str(path))
    graph = as_graph(spec.spec)
    model = build(graph, device="cpu", seed=0)
    draw(model, torch.float32)
    weights = save_weights(model, tmp_path / "weights.safetensors")
    export(graph, tmp_path / "out", weights=weights, spec=spec, provider="cpu", dtype="float32", check=False)
    expected = generate(model, PROMPTS, max_new_tokens=12).ids
    assert len({tuple(row) for row in expected}) == 3
    found = load(tmp_path / "out", provider="cpu", threads=1)
    assert found.generate(PROMPTS, max_new_tokens=12).ids == expected
