"""Files that see all their tokens at once: inputs, outputs, and torch's numbers whatever the padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from archc.errors import ArchcError, GraphError
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.ops.masked_attention import RelativeBias, bucket_of
from archc.spec.load import loads_spec

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from archc.testing import check_kind  # noqa: E402
from archc.torch_backend.leaves.masked_attention import RelativeBias as Leaf  # noqa: E402
from archc_exporters.onnx.export import export  # noqa: E402
from archc_exporters.onnx.masked_attention import buckets_of  # noqa: E402
from archc_exporters.onnx.placement.check import check_provider  # noqa: E402
from archc_exporters.onnx.report import ExportReport  # noqa: E402
from archc_exporters.onnx.session import load_session, run_whole  # noqa: E402

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

ENCODER = """
spec_version: 1
name: encoder
max_position_embeddings: 64
tokenizer: {kind: external, vocab_size: 40}
embedding: {hidden_size: 32, tie_word_embeddings: true, num_embeddings: 48, type_vocab_size: 2, norm: true}
position: POSITION
norm: {kind: layer_norm, eps: 1e-12}
mixers:
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 8, qkv_bias: true, o_bias: true}
ffns:
  mlp: {kind: mlp, intermediate_size: 48, activation: gelu, bias: true}
encoder: {num_layers: 2, block: post_norm, mixer: attn, ffn: mlp, mask: bidirectional, final_norm: false}
head: HEAD
"""
PICTURES = """
spec_version: 1
name: pictures
tokenizer: none
embedding: {kind: patch, hidden_size: 32, image_size: 12, patch_size: 4}
position: {kind: learned}
norm: {kind: layer_norm, eps: 1e-12}
mixers:
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 8, qkv_bias: true}
ffns:
  mlp: {kind: mlp, intermediate_size: 48, activation: gelu, bias: true}
encoder: {num_layers: 2, block: pre_norm, mixer: attn, ffn: mlp, mask: bidirectional}
head: {kind: classifier, num_labels: 3}
"""
BIAS = "{kind: relative_bias, num_buckets: 8, max_distance: 16}"


def text_of(position: str = "{kind: learned}", head: str = "none", *, gqa: str = "") -> str:
    found = ENCODER.replace("POSITION", position).replace("HEAD", head)
    return found.replace("o_bias: true}", f"o_bias: true, {gqa}}}") if gqa else found


def exported(text: str, folder: Path, **choices: Any) -> tuple[Graph, ExportReport]:
    graph = expand(loads_spec(text))
    return graph, export(graph, folder / "out", **choices)


def dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize(
    "text",
    [
        text_of(gqa="sliding_window: 6, attn_logit_softcapping: 3.0"),
        text_of("{kind: alibi}", gqa="sliding_window: 8"),
        text_of("{kind: rope, theta: 100.0}").replace("num_kv_heads: 4", "num_kv_heads: 2"),
        text_of(BIAS, "{kind: mlm, activation: gelu}"),
        text_of(head="{kind: pooler}"),
        text_of(head="{kind: classifier, num_labels: 3, pool: mean}"),
        text_of(head="{kind: classifier, num_labels: 3, pool: last}"),
        PICTURES,
    ],
    ids=["window and soft cap", "slopes", "grouped and turned", "bias and mlm", "pooler", "mean", "last", "pictures"],
)
def test_every_output_is_torchs_with_padding_on_either_side(text: str) -> None:
    check_kind("mixer.gqa", spec=text)


@pytest.mark.parametrize(
    "text",
    [
        text_of("{kind: rope, theta: 100.0}"),
        text_of(BIAS).replace("num_kv_heads: 4", "num_kv_heads: 2"),
        text_of("{kind: alibi}"),
    ],
    ids=["turned", "bias", "slopes"],
)
def test_a_prefix_sees_itself_and_no_more(text: str) -> None:
    stack = text.replace("encoder: {", "stack: {").replace("mask: bidirectional", "mask: prefix")
    check_kind("mixer.gqa", spec=stack.replace("head: none", "head: lm").replace("type_vocab_size: 2, ", ""))


def test_a_file_has_ids_and_their_mask_and_names_what_it_gives(tmp_path: Path) -> None:
    exported(text_of(head="{kind: pooler}"), tmp_path)
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    assert {value.name: dims(value) for value in graph.input} == {
        "input_ids": ["batch", "seq"],
        "attention_mask": ["batch", "seq"],
        "token_type_ids": ["batch", "seq"],
    }
    assert {value.name: dims(value) for value in graph.output} == {
        "hidden_states": ["batch", "seq", 32],
        "pooler_output": ["batch", 32],
    }
    told = json.loads((tmp_path / "out" / "archc.json").read_text("utf-8"))
    assert (told["mask"], told["encoder"], told["caches"]) == ("bidirectional", None, [])


def test_pictures_come_in_float32_whatever_the_dtype(tmp_path: Path) -> None:
    exported(PICTURES, tmp_path, dtype="float16")
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    (given,) = graph.input
    assert (given.name, dims(given)) == ("pixel_values", ["batch", 3, 12, 12])
    assert given.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert {value.name: dims(value) for value in graph.output} == {"logits": ["batch", 3]}


@pytest.mark.parametrize(
    "text", [text_of(head="{kind: pooler}"), text_of(BIAS), PICTURES], ids=["text", "bias", "pictures"]
)
def test_nothing_leaves_the_gpu_and_nothing_is_copied(text: str, tmp_path: Path) -> None:
    _, report = exported(text, tmp_path, check_provider="cuda", no_weights=True)
    assert report.placement is not None
    assert not report.placement.memcpy
    assert not report.placement.away


def test_a_mask_that_is_left_out_is_all_ones(tmp_path: Path) -> None:
    exported(text_of(), tmp_path, provider="cpu", dtype="float32")
    session = load_session(tmp_path / "out" / "model.onnx", threads=1)
    ids = np.random.default_rng(0).integers(0, 40, (2, 6))
    plain = run_whole(session, {"input_ids": ids})["hidden_states"]
    stated = run_whole(session, {"input_ids": ids, "attention_mask": np.ones_like(ids)})["hidden_states"]
    assert np.array_equal(plain, stated)


def test_what_is_masked_changes_nothing(tmp_path: Path) -> None:
    exported(text_of(), tmp_path, provider="cpu", dtype="float32")
    session = load_session(tmp_path / "out" / "model.onnx", threads=1)
    ids = np.random.default_rng(0).integers(0, 40, (1, 8))
    mask = np.array([[0, 0, 1, 1, 1, 1, 1, 0]])
    other = np.where(mask, ids, 39 - ids)
    first, second = (
        run_whole(session, {"input_ids": each, "attention_mask": mask})["hidden_states"][:, 2:7]
        for each in (ids, other)
    )
    assert np.abs(first - second).max() == 0.0
    alone = run_whole(session, {"input_ids": ids[:, 2:7]})["hidden_states"]
    np.testing.assert_allclose(first, alone, atol=1e-5)


def test_flash_attention_takes_what_has_no_mask(tmp_path: Path) -> None:
    _, report = exported(PICTURES, tmp_path, no_weights=True)
    forms = {choice.form for choice in report.choices if choice.op == "bidirectional_attention"}
    assert forms == {"Attention without a mask, which CUDA's flash kernel takes"}


def test_one_mask_serves_all_layers(tmp_path: Path) -> None:
    _, report = exported(text_of(), tmp_path, no_weights=True)
    assert report.nodes["Attention"] == 2
    assert report.nodes["Where"] == 1


def test_placement_says_which_lengths_run_unfused(tmp_path: Path) -> None:
    exported(text_of(), tmp_path, no_weights=True)
    found = check_provider(tmp_path / "out" / "model.onnx")
    assert [(limit.severity, limit.message) for limit in found.limits] == [
        ("bounded", "a seq that is no multiple of 4 runs unfused under a mask")
    ]


@pytest.mark.parametrize("mask", ["causal", "bidirectional", "prefix"])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(8, 16), (32, 128), (16, 100)])
def test_distances_fall_into_the_buckets_of_torch(mask: str, num_buckets: int, max_distance: int) -> None:
    op = RelativeBias(num_heads=1, num_buckets=num_buckets, max_distance=max_distance, mask=mask)
    distances = np.arange(-2 * max_distance, 2 * max_distance + 1)
    found = buckets_of(distances, op)
    assert np.array_equal(found, Leaf(op)._buckets(torch.from_numpy(distances)).numpy())
    exact = [
        bucket_of(int(d), num_buckets=num_buckets, max_distance=max_distance, bidirectional=mask == "bidirectional")
        for d in distances
    ]
    # Logarithms in float32 may put a distance that stands on a boundary one bucket off.
    assert np.abs(found - exact).max() <= 1
    assert np.mean(found != exact) < 0.02


def test_no_head_can_be_pruned_to_a_last_token(tmp_path: Path) -> None:
    with pytest.raises(ArchcError, match="no head can be pruned to the last one"):
        exported(text_of(head="{kind: mlm, activation: gelu}"), tmp_path, prune_head=True)


def test_genai_refuses_an_encoder_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArchcError, match="stack: sees all tokens at once, and its runtime generates"):
        exported(text_of(head="{kind: mlm, activation: gelu}"), tmp_path, io="genai")


def test_more_positions_than_the_table_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="max_model_len should be at most that"):
        exported(text_of(), tmp_path, max_model_len=100)


def test_integer_weights_are_measured_by_what_they_cost(tmp_path: Path) -> None:
    wide = (
        text_of()
        .replace("hidden_size: 32", "hidden_size: 128")
        .replace("intermediate_size: 48", "intermediate_size: 256")
    )
    _, report = exported(
        wide.replace("head_dim: 8", "head_dim: 32"), tmp_path, provider="cpu", dtype="float32", quant="int8"
    )
    assert report.quantization is not None
    assert report.quality
    assert not isinstance(report.quality, str)
    assert 0 < report.quality.relative_rms < 0.05
