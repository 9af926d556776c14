"""A decoder and its encoder as two files: what each is given, what lies once in their data, and torch's numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from archc.errors import ArchcError
from archc.expansion import expand
from archc.spec.load import loads_spec

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from archc.testing import check_kind  # noqa: E402
from archc.testing.torch_judge import judge  # noqa: E402
from archc_exporters.onnx.export import export  # noqa: E402
from archc_exporters.onnx.report import ExportReport  # noqa: E402
from archc_exporters.onnx.session import Conversation, load_session  # noqa: E402

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

TWO_STACKS = """
spec_version: 1
name: two-stacks
max_position_embeddings: 64
tokenizer: {kind: external, vocab_size: 40, pad_token_id: 0}
embedding: {hidden_size: 32, tie_word_embeddings: true, num_embeddings: 48}
position: POSITION
norm: {kind: rms_norm, eps: 1e-6}
mixers:
  attn: {kind: gqa, num_heads: 4, num_kv_heads: KV, head_dim: 8}
  cross: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, position: none}
ffns:
  mlp: {kind: mlp, intermediate_size: 48, activation: relu}
encoder: {num_layers: 2, block: pre_norm, mixer: attn, ffn: mlp}
decoder: {num_layers: 2, block: pre_norm, mixer: attn, cross: cross, ffn: mlp}
"""
POSITIONS = {
    "biases": ("{kind: relative_bias, num_buckets: 8, max_distance: 16}", 4),
    "turned": ("{kind: rope, theta: 100.0}", 2),
    "sines": ("{kind: sinusoidal}", 4),
}


def text_of(position: str) -> str:
    stated, kv = POSITIONS[position]
    return TWO_STACKS.replace("POSITION", stated).replace("KV", str(kv))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, ExportReport]]:
    @cache
    def make(position: str, **choices: Any) -> tuple[Path, ExportReport]:
        folder = tmp_path_factory.mktemp("export") / "out"
        return folder, export(expand(loads_spec(text_of(position))), folder, **choices)

    return make


def inputs(path: Path) -> dict[str, list[int | str]]:
    graph = onnx.load(path, load_external_data=False).graph
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.input
    }


def outputs(path: Path) -> list[str]:
    return [value.name for value in onnx.load(path, load_external_data=False).graph.output]


@pytest.mark.parametrize("position", POSITIONS)
def test_calls_give_torchs_numbers_with_sources_padded_on_either_side(position: str) -> None:
    said = str(check_kind("mixer.gqa", spec=text_of(position)))
    assert "ONNX = torch: whole, chunks, prefill and decode, ragged rows" in said


def test_the_encoder_gives_what_cross_attention_keeps_and_nothing_else(written: Callable[..., Any]) -> None:
    folder, _ = written("biases")
    encoder, decoder = folder / "encoder.onnx", folder / "model.onnx"
    assert inputs(encoder) == {"encoder_input_ids": ["batch", "source"], "encoder_attention_mask": ["batch", "source"]}
    kept = [f"{layer}.cross.{role}" for layer in range(2) for role in ("key", "value")]
    assert outputs(encoder) == [f"present.{name}" for name in kept]
    given = inputs(decoder)
    assert [name for name, dims in given.items() if dims == ["batch", 2, "source", 8]] == [
        f"past_key_values.{name}" for name in kept
    ]
    assert given["encoder_attention_mask"] == ["batch", "source"]
    assert "encoder_input_ids" not in given
    assert outputs(decoder)[0] == "logits"
    assert not any(".cross." in name for name in outputs(decoder))


def test_the_decoder_computes_nothing_of_its_source(written: Callable[..., Any]) -> None:
    folder, _ = written("biases")
    names = {
        part: {node.name for node in onnx.load(folder / part, load_external_data=False).graph.node}
        for part in ("encoder.onnx", "model.onnx")
    }
    assert not any(name.startswith("encoder.") or ".cross.k_proj" in name for name in names["model.onnx"])
    assert any(".cross.k_proj" in name or ".cross.v_proj" in name for name in names["encoder.onnx"])
    assert not any(".ffn" in name for name in names["encoder.onnx"] if name.startswith("decoder."))


def test_a_table_of_both_files_lies_once_in_their_data(written: Callable[..., Any]) -> None:
    folder, report = written("biases", provider="cpu", dtype="float32")
    places: dict[str, set[tuple[str, str]]] = {}
    for part in ("encoder.onnx", "model.onnx"):
        for tensor in onnx.load(folder / part, load_external_data=False).graph.initializer:
            info = {entry.key: entry.value for entry in tensor.external_data}
            if info:
                places.setdefault(tensor.name, set()).add((info["location"], info["offset"]))
    assert len(places["embed_tokens.weight"]) == 1
    # Rows of the table beyond the vocabulary stay out, and tables by distance have more rows than buckets.
    assert (folder / "model.onnx.data").stat().st_size < report.weight_bytes + 4 * (33 + 17) * 4 + 64 * len(places)


def test_the_contract_says_which_file_gives_which_cache(written: Callable[..., Any]) -> None:
    folder, _ = written("biases")
    told = json.loads((folder / "archc.json").read_text("utf-8"))
    assert told["encoder"]["file"] == "encoder.onnx"
    assert {"encoder.onnx", "model.onnx", "model.onnx.data"} <= set(told["files"])
    sources = [cache for cache in told["caches"] if cache["growth"] == "source"]
    assert [cache["output"] for cache in sources] == [value["name"] for value in told["encoder"]["outputs"]]
    assert {cache["bytes_per_source_token"] for cache in sources} == {2 * 8 * 2}
    assert {cache["bytes_per_token"] for cache in sources} == {0}
    assert (told["start_id"], told["source_vocab_size"]) == (0, 40)


@pytest.mark.parametrize("position", POSITIONS)
def test_nothing_of_either_file_leaves_the_gpu_and_nothing_is_copied(
    written: Callable[..., Any], position: str
) -> None:
    _, report = written(position, check_provider="cuda", no_weights=True)
    assert report.placement is not None
    assert not report.placement.memcpy
    assert not report.placement.away
    assert report.placement.counts()["cuda"] > 100


def test_the_files_are_tried_together_and_equal_torch_in_float16(written: Callable[..., Any]) -> None:
    _, report = written("biases", dtype="float16", judge=judge)
    assert any(line.startswith("encoder.onnx: structure") for line in report.checks)
    assert any("prefill 4, chunk 2, decode 1" in line and "all numbers finite" in line for line in report.checks)
    ways = [each["way"] for each in report.comparisons]
    assert any("source padded on the left" in way for way in ways)
    assert all(each["max_abs"] <= each["max_limit"] for each in report.comparisons)


def test_a_float32_twin_stands_for_bfloat16(written: Callable[..., Any]) -> None:
    _, report = written("turned", dtype="bfloat16", judge=judge)
    assert any("float32 twin" in line for line in report.checks)
    assert len(report.comparisons) > 4


def test_a_conversation_wants_the_encoders_file(written: Callable[..., Any]) -> None:
    folder, _ = written("biases", provider="cpu", dtype="float32")
    session = load_session(folder / "model.onnx", threads=1)
    with pytest.raises(ValueError, match="comes of the encoder's file"):
        Conversation(session, batch=1, capacity=16)


def test_padding_of_the_source_changes_nothing(written: Callable[..., Any]) -> None:
    folder, _ = written("biases", provider="cpu", dtype="float32")
    session, encoder = (load_session(folder / name, threads=1) for name in ("model.onnx", "encoder.onnx"))
    rng = np.random.default_rng(0)
    source, ids = rng.integers(0, 40, (1, 5)), rng.integers(0, 40, (1, 6))
    padded = np.concatenate([rng.integers(0, 40, (1, 3)), source], 1)
    mask = np.array([[0] * 3 + [1] * 5])
    told = [{"encoder_input_ids": source}, {"encoder_input_ids": padded, "encoder_attention_mask": mask}]
    talks = [Conversation(session, batch=1, capacity=16, encoder=encoder, given=given) for given in told]
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        first, second = (talk.step(ids[:, start:stop]) for talk in talks)
        np.testing.assert_allclose(first, second, atol=1e-5)


def test_genai_refuses_a_decoder_with_its_encoder(tmp_path: Path) -> None:
    with pytest.raises(ArchcError, match="decoder: reads an encoder, and its runtime is given decoders alone"):
        export(expand(loads_spec(text_of("turned"))), tmp_path / "out", io="genai")


def test_genai_refuses_a_prefix(tmp_path: Path) -> None:
    text = text_of("turned").replace("encoder: {", "stack: {mask: prefix, ")
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("decoder:", "  cross:")))
    with pytest.raises(ArchcError, match="prefix_length: is the length of a prefix"):
        export(expand(loads_spec(text)), tmp_path / "out", io="genai")


def test_only_the_logits_of_last_tokens(written: Callable[..., Any]) -> None:
    _, report = written("biases", provider="cpu", dtype="float32", prune_head=True, judge=judge)
    assert all(each["relative"] < 2e-5 for each in report.comparisons)


def test_integer_weights_of_both_files(tmp_path: Path) -> None:
    text = text_of("turned").replace("hidden_size: 32", "hidden_size: 128").replace("head_dim: 8", "head_dim: 32")
    text = text.replace("intermediate_size: 48", "intermediate_size: 256").replace("num_kv_heads: 2", "num_kv_heads: 4")
    text = text.replace("vocab_size: 40", "vocab_size: 400").replace("num_embeddings: 48", "num_embeddings: 416")
    report = export(expand(loads_spec(text)), tmp_path / "out", provider="cpu", dtype="float32", quant="int8")
    assert report.quantization is not None
    encoder, decoder = (
        {tensor.name for tensor in onnx.load(tmp_path / "out" / name, load_external_data=False).graph.initializer}
        for name in ("encoder.onnx", "model.onnx")
    )
    assert {"embed_tokens.weight.q8", "embed_tokens.weight.scales"} <= encoder & decoder
    assert report.nodes["com.microsoft.MatMulNBits"] == report.quantization.nodes["MatMulNBits"]
    assert not isinstance(report.quality, str)
    assert 0 < report.quality.relative_rms < 0.05
