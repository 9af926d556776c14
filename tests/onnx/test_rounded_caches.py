"""Caches of 8 and 4 bits: what is in them, what they take and cost, where their steps come from, and who can have none."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import to_array

pytest.importorskip("onnxruntime")

import archc
from archc.errors import ArchcError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.load import loads_spec
from archc_exporters.onnx.export import export
from archc_exporters.onnx.quality import QualityLoss
from archc_exporters.onnx.session import Conversation, load_session
from archc_exporters.onnx.target import Target
from tests.onnx.placement_judge import judged, needs_check

pytestmark = pytest.mark.onnx

SPEC = """
spec_version: 1
name: rounded
tokenizer: {kind: external, vocab_size: 61}
embedding: {hidden_size: 64, tie_word_embeddings: false}
norm: {kind: rms_norm, eps: 1e-5}
position: {kind: rope, theta: 10000.0}
max_position_embeddings: 64
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 32, sink_logits: true}
  own: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, qk_norm: head, cache: {dtype: int8}}
  near: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 32, sliding_window: 5}
  gdn: {kind: gated_deltanet, num_key_heads: 2, num_value_heads: 2, key_head_dim: 16, value_head_dim: 16}
ffns: {mlp: {kind: swiglu, intermediate_size: 96}}
stack: {num_layers: 2, block: pre_norm, mixer: MIXERS, ffn: mlp}
"""
RELATIVE_RMS = {"int8": 0.02, "int4": 0.3}
"""Bound of the logits' error over their spread; half of it was measured."""


@cache
def graph_of(mixers: str, text: str = "") -> Graph:
    return expand(loads_spec(SPEC.replace("MIXERS", mixers) + text))


def exported(folder: Path, graph: Graph, **choice: Any) -> Any:
    return export(graph, folder, max_model_len=64, **{"dtype": "float16", "provider": "cpu", **choice})


def conversation(folder: Path, graph: Graph) -> Conversation:
    session = load_session(folder / "model.onnx", threads=1)
    return Conversation(session, batch=2, capacity=graph.capacity(40))


def scales(folder: Path) -> dict[str, np.ndarray]:
    proto = onnx.load(folder / "model.onnx")
    return {tensor.name: to_array(tensor) for tensor in proto.graph.initializer if tensor.name.endswith("_scale")}


@pytest.mark.parametrize("mixers", ["gqa", "gqa own"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_cache_bytes_are_those_of_the_estimate(tmp_path: Path, dtype: str, mixers: str) -> None:
    graph = graph_of(mixers)
    report = exported(tmp_path / "out", graph, kv_cache_dtype=dtype, check=False)
    rows = graph.capacity(64)
    wanted = estimate(graph, dtype="float16", kv_cache_dtype=dtype, max_model_len=64)
    assert sum(rows * each.bytes_per_token for each in report.caches) == wanted.cache.allocated_bytes
    assert {each.dtype for each in report.caches} == {"int8" if dtype == "int8" else "uint8"}
    held = conversation(tmp_path / "out", graph).caches
    assert sum(array.nbytes for array in held.values()) // (2 * graph.capacity(40)) == sum(
        each.bytes_per_token for each in report.caches
    )


@pytest.mark.parametrize("model_dtype", ["float32", "float16"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_cache_holds_the_nearest_numbers_of_its_steps(tmp_path: Path, dtype: str, model_dtype: str) -> None:
    graph, ids = graph_of("gqa"), np.random.default_rng(2).integers(0, 61, (2, 9))
    exported(tmp_path / "float", graph, dtype=model_dtype, check=False)
    exported(tmp_path / "rounded", graph, dtype=model_dtype, kv_cache_dtype=dtype, check=False)
    plain, rounded = (conversation(tmp_path / name, graph) for name in ("float", "rounded"))
    plain.step(ids)
    rounded.step(ids)
    step = scales(tmp_path / "rounded")
    for role in ("key", "value"):
        name = f"past_key_values.0.{role}"
        held = plain.caches[name][:, :, :9].astype(np.float32) / step[f"layers.0.mixer.attention.{role[0]}_scale"]
        got = rounded.caches[name][:, :, :9]
        if dtype == "int4":
            got = np.stack((got & 15, got >> 4), -1).reshape(held.shape).astype(np.int64) - 8
        low, high = (-128, 127) if dtype == "int8" else (-8, 7)
        off = np.abs(got - np.clip(held, low, high))
        assert off.max() < 0.51, role
        assert (np.clip(held, low, high) == held).mean() > 0.98, role


@pytest.mark.parametrize("mixers", ["gqa", "gqa own"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_logits_stay_near_those_over_float_caches(tmp_path: Path, dtype: str, mixers: str) -> None:
    report = exported(tmp_path / "out", graph_of(mixers), kv_cache_dtype=dtype)
    assert isinstance(report.quality, QualityLoss)
    assert 0 < report.quality.relative_rms < RELATIVE_RMS[dtype]
    assert any("4 caches are rounded" in note and "calibrate poorly" in note for note in report.notes)


def test_rounded_weights_and_caches_go_together(tmp_path: Path) -> None:
    report = exported(
        tmp_path / "out", graph_of("gqa"), kv_cache_dtype="int8", quant="int8", dtype="bfloat16", provider="cuda"
    )
    assert isinstance(report.quality, QualityLoss)
    assert 0 < report.quality.relative_rms < 0.05
    assert "twins" in report.quality.measured_on


@pytest.mark.parametrize("choice", [{"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "int4", "quant": "int8"}])
def test_the_runtime_binds_rounded_caches_in_place(tmp_path: Path, choice: dict[str, Any]) -> None:
    graph, ids = graph_of("gqa own"), np.random.default_rng(6).integers(0, 61, (2, 7))
    exported(tmp_path / "out", graph, check=False, **choice)
    talk, wanted = conversation(tmp_path / "out", graph), list[np.ndarray]()
    y = talk.step(ids)
    for _ in range(6):
        wanted.append(y[:, -1].argmax(-1))
        y = talk.step(wanted[-1][:, None])
    found = archc.load(tmp_path / "out", provider="cpu").generate(ids.tolist(), max_new_tokens=6)
    assert found.ids == np.stack(wanted, 1).tolist()


def test_steps_are_the_largest_of_each_channel_of_the_calibration_tokens(tmp_path: Path) -> None:
    graph, ids = graph_of("gqa"), np.random.default_rng(4).integers(0, 61, (2, 11))
    np.save(tmp_path / "ids.npy", ids)
    (tmp_path / "ids.jsonl").write_text("\n".join(json.dumps(row.tolist()) for row in ids))
    exported(tmp_path / "float", graph, check=False)
    talk = conversation(tmp_path / "float", graph)
    talk.step(ids)
    found: list[dict[str, np.ndarray]] = []
    for name in ("ids.npy", "ids.jsonl"):
        report = exported(
            tmp_path / "out", graph, kv_cache_dtype="int8", calibration=tmp_path / name, check=False, overwrite=True
        )
        assert any("22 tokens" in note for note in report.notes)
        found.append(scales(tmp_path / "out"))
    for role in ("key", "value"):
        largest = np.abs(talk.caches[f"past_key_values.1.{role}"][:, :, :11].astype(np.float32)).max((0, 2))
        for each in found:
            step = each[f"layers.1.mixer.attention.{role[0]}_scale"]
            assert step.shape == (1, 2, 1, 32)
            assert step.dtype == np.float32
            np.testing.assert_allclose(step[0, :, 0] * 127, largest, rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", "[1, 2", "can't be read as token ids"),
        ("a.jsonl", "", "should hold ids"),
        ("a.jsonl", '["a"]', "should hold ids"),
        ("a.jsonl", "[1.5]", "should hold ids"),
        ("a.jsonl", "[1, 61]", "ids from 1 to 61; the vocabulary is 0 to 60"),
        ("a.npy", "no array", "can't be read as token ids"),
    ],
)
def test_a_file_of_no_ids_is_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ArchcError, match=words):
        exported(tmp_path / "out", graph_of("gqa"), kv_cache_dtype="int8", calibration=tmp_path / name)
    assert not (tmp_path / "out").exists()


def test_calibration_of_float_caches_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids.jsonl").write_text("[1]")
    with pytest.raises(ArchcError, match="no cache is rounded"):
        exported(tmp_path / "out", graph_of("gqa"), calibration=tmp_path / "ids.jsonl")


def test_a_hybrid_rounds_what_its_spec_says_and_no_more(tmp_path: Path) -> None:
    graph = graph_of("own gdn")
    report = exported(tmp_path / "out", graph)
    assert {each.name: each.dtype for each in report.caches} == {
        "past_key_values.0.key": "int8",
        "past_key_values.0.value": "int8",
        "past_key_values.1.conv_state": "float16",
        "past_key_values.1.recurrent_state": "float32",
    }
    assert isinstance(report.quality, QualityLoss)
    plain = exported(tmp_path / "out", graph, kv_cache_dtype="f16", check=False, overwrite=True)
    assert "int8" not in {each.dtype for each in plain.caches}


def test_layers_that_can_not_round_are_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ArchcError) as error:
        exported(tmp_path / "out", graph_of("near gdn"), kv_cache_dtype="int8")
    text = str(error.value)
    assert "layers.N.mixer.attention.key (N = 0), layers.N.mixer.attention.value (N = 0) can't be int8: a ring" in text
    assert "layers.N.mixer.conv.conv_state (N = 1) can't be int8: only GroupQueryAttention" in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_rolling_cache_is_rounded_by_every_token_of_the_calibration(tmp_path: Path, dtype: str) -> None:
    """A window of 5 forgets most of them: its steps are still those of all, as a window of 64 has them in its first layer."""
    choice: dict[str, Any] = {"kv_cache_dtype": dtype, "sliding_window_cache": True}
    report = exported(tmp_path / "near", graph_of("near"), **choice)
    assert isinstance(report.quality, QualityLoss)
    assert 0 < report.quality.relative_rms < RELATIVE_RMS[dtype]
    assert {each.bytes_per_sequence for each in report.caches} == {5 * 2 * 32 // (1 if dtype == "int8" else 2)}
    wide = SPEC.replace("MIXERS", "near").replace("sliding_window: 5", "sliding_window: 64")
    exported(tmp_path / "far", expand(loads_spec(wide)), check=False, **choice)
    near, far = scales(tmp_path / "near"), scales(tmp_path / "far")
    narrow = SPEC.replace("MIXERS", "near").replace("head_dim: 32, sliding", "head_dim: 16, sliding")
    if dtype == "int4":
        with pytest.raises(ArchcError, match="a head should be a multiple of 32, and is 16"):
            exported(tmp_path / "narrow", expand(loads_spec(narrow)), **choice)
    for role in "kv":
        name = f"layers.0.mixer.attention.{role}_scale"
        np.testing.assert_allclose(near[name], far[name], rtol=1e-3)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"kv_cache_dtype": "int8", "provider": "cuda", "dtype": "float32"}, "cuda has no kernel for it in float32"),
        ({"kv_cache_dtype": "int8", "batched_chunks": True}, "refuses several new tokens over a past at batch > 1"),
        ({"kv_cache_dtype": "fp8"}, "cpu has no kernel; legal: int8, int4"),
        ({"kv_cache_dtype": "float32"}, "a kernel wants one dtype"),
        ({"kv_cache_dtype": "int2"}, "legal: int8, int4, float8_e4m3fn, float16"),
        ({"kv_cache_dtype": "float8_e5m2"}, "legal: int8, int4, float8_e4m3fn, float16"),
    ],
)
def test_what_no_kernel_holds_is_refused(tmp_path: Path, choice: dict[str, Any], words: str) -> None:
    with pytest.raises(ArchcError, match=words):
        exported(tmp_path / "out", graph_of("gqa"), **choice)


def test_float8_caches_are_for_cuda_and_not_run_here(tmp_path: Path) -> None:
    report = exported(tmp_path / "out", graph_of("gqa"), kv_cache_dtype="fp8", provider="cuda")
    assert {each.dtype for each in report.caches} == {"float8_e4m3fn"}
    assert report.quality == "not measured: onnxruntime's CPU has no float8 caches"
    assert "not run: onnxruntime's CPU has no float8 caches" in report.checks
    assert (
        sum(each.bytes_per_token for each in report.caches)
        == estimate(graph_of("gqa"), dtype="float16", kv_cache_dtype="fp8").cache.bytes_per_token
    )


def test_a_file_without_weights_has_no_steps_to_calibrate(tmp_path: Path) -> None:
    report = exported(tmp_path / "out", graph_of("gqa"), kv_cache_dtype="int4", no_weights=True)
    assert any("not in the file" in note for note in report.notes)
    assert {each.shape[-1] for each in report.caches} == {16}


def test_the_model_dtype_is_the_same_as_no_rounding() -> None:
    assert Target(dtype="float16", kv_cache_dtype="f16") == Target(dtype="float16", kv_cache_dtype="model")
    assert replace(Target(dtype="bf16"), kv_cache_dtype="bf16").kv_cache_dtype == "model"


@needs_check
@pytest.mark.parametrize("dtype", ["int8", "int4", "fp8"])
def test_every_node_has_a_kernel_on_cuda(tmp_path: Path, dtype: str) -> None:
    exported(tmp_path / "out", graph_of("gqa own"), kv_cache_dtype=dtype, provider="cuda", check=False)
    options = ["--fail-on-nokernel", "--fail-on-memcpy"]
    if dtype != "fp8":
        lengths = {"past_length": 7, "seq_length": 1, "kv_length": 8, "max_length": 8}
        fills = [part for name, number in lengths.items() for part in ("--fill", f"{name}={number}")]
        options += ["--run", "batch=2,seq=1,capacity=32", *fills]
    done = judged(tmp_path / "out" / "model.onnx", *options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
