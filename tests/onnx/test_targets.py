"""Forms that a target chooses: every one of them gives torch's numbers, and the report says why it was chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from archc.errors import ArchcError, GraphError
from archc.expansion import expand
from archc.ops.attention import Attention
from archc.spec.load import loads_spec
from archc_exporters.onnx.export import export
from archc_exporters.onnx.limits import group_query_objection
from archc_exporters.onnx.target import Target
from tests.onnx.conftest import ARCHITECTURES, FAMILIES, VOCABULARY
from tests.onnx.test_files import spec_text
from tests.onnx.test_values import WAYS, ragged_error, uniform_error

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

HEADS = Attention(num_heads=4, num_kv_heads=2, key_dim=64, value_dim=64, scale=0.125)


def nodes_of(model: Any) -> list[onnx.NodeProto]:
    """Nodes of the file, those of branches included."""

    def all_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
        found: list[onnx.NodeProto] = []
        for node in graph.node:
            found.append(node)
            for attribute in node.attribute:
                found += all_of(attribute.g)
        return found

    return all_of(onnx.load(model.folder / "model.onnx", load_external_data=False).graph)


def kinds_of(model: Any) -> set[str]:
    return {node.op_type for node in nodes_of(model)}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_forms_for_cuda_equal_torch_in_float32(exported: Callable[..., Any], name: str) -> None:
    model = exported(name, "float32", provider="cuda")
    size = float(np.abs(model.expected).max())
    assert max(uniform_error(model, *way) for way in WAYS.values()) < 2e-5 * max(size, 4.0)
    assert ragged_error(model) < 2e-5 * max(size, 4.0)


def test_float32_has_group_query_attention_on_the_cpu_only(exported: Callable[..., Any]) -> None:
    assert "GroupQueryAttention" in kinds_of(exported("llama", "float32"))
    on_cuda = exported("llama", "float32", provider="cuda")
    assert "GroupQueryAttention" not in kinds_of(on_cuda)
    forms = " ".join(choice.form for choice in on_cuda.report.choices)
    assert "not GroupQueryAttention: cuda has no kernel for it in float32" in forms


@pytest.mark.parametrize("name", ["kimi-linear", "qwen3-next"])
def test_fused_kernels_that_are_slow_on_the_cpu_are_for_cuda(exported: Callable[..., Any], name: str) -> None:
    slow = {"CausalConvWithState", "GatedRMSNorm"}
    assert slow <= kinds_of(exported(name, "float16"))
    assert not slow & kinds_of(exported(name, "float32"))


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "gqa keys"])
def test_batched_chunks_are_one_call(exported: Callable[..., Any], name: str) -> None:
    model = exported(name, "float32", batched_chunks=True)
    assert "GroupQueryAttention" not in kinds_of(model)
    calls = 0
    talk = model.conversation(2)
    run = talk._session.run

    class Counted:
        def run(self, *given: Any) -> Any:
            nonlocal calls
            calls += 1
            return run(*given)

    talk._session = Counted()
    got = np.concatenate([talk.step(model.ids[:, a:b]) for a, b in ((0, 7), (7, 12), (12, 20))], 1)
    assert calls == 3
    assert np.abs(got - model.expected).max() < 2e-5


@pytest.mark.parametrize("name", [*FAMILIES, "mla and kda keys"])
def test_a_pruned_head_gives_the_last_token_of_each_row(exported: Callable[..., Any], name: str) -> None:
    model = exported(name, "float32", prune_head=True)
    talk = model.conversation(2)
    new = np.array([9, 4])
    first = talk.step(model.ids[:, :9], new)
    assert first.shape == (2, 1, model.expected.shape[-1])
    for row, count in enumerate(new):
        assert np.abs(first[row, 0] - model.expected[row, count - 1]).max() < 4e-5
    one = talk.step(np.stack([model.ids[row, count : count + 1] for row, count in enumerate(new)]))
    for row, count in enumerate(new):
        assert np.abs(one[row, 0] - model.expected[row, count]).max() < 4e-5


def test_a_rolling_window_cache_equals_torch(exported: Callable[..., Any]) -> None:
    model = exported("window", "float32", sliding_window_cache=True)
    rolling = [node for node in nodes_of(model) if node.op_type == "GroupQueryAttention"]
    assert [{item.name: item.i for item in node.attribute}.get("local_window_size") for node in rolling] == [5, None]
    talk = model.conversation(1)
    got = [talk.step(model.ids[:1, :12])] + [talk.step(model.ids[:1, at : at + 1]) for at in range(12, 20)]
    assert np.abs(np.concatenate(got, 1) - model.expected[:1]).max() < 1e-5


@pytest.mark.parametrize(
    ("change", "target", "reason"),
    [
        ({}, {"provider": "cpu", "dtype": "float32"}, ""),
        ({}, {"provider": "cuda", "dtype": "bfloat16"}, ""),
        ({"sinks": True, "soft_cap": 30.0}, {"provider": "cuda"}, ""),
        ({}, {"provider": "cuda", "dtype": "float32"}, "cuda has no kernel for it in float32"),
        ({"key_dim": 60, "value_dim": 60}, {}, "a head of 60 is no multiple of 8"),
        ({"value_dim": 128}, {}, "keys of 64 and values of 128 differ in width"),
        ({"key_dim": 576, "value_dim": 576}, {}, "a head of 576 is larger than 512"),
        ({"key_dim": 576, "value_dim": 576}, {"provider": "cpu"}, ""),
        ({"slopes": (1.0, 1.0, 1.0, 1.0)}, {}, "its bias would run unfused on CUDA"),
        ({}, {"batched_chunks": True}, "it refuses several new tokens over a past at batch > 1"),
    ],
)
def test_what_group_query_attention_refuses(change: dict[str, Any], target: dict[str, Any], reason: str) -> None:
    from dataclasses import replace

    assert group_query_objection(replace(HEADS, **change), Target(**target)) == reason


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"dtype": "int8"}, "dtype int8 can't be exported; legal: float16, float32, bfloat16"),
        ({"provider": "rocm"}, "provider rocm can't be exported; legal: cuda, cpu"),
        ({"io": "tgi"}, "io tgi can't be exported; legal: archc, genai"),
        (
            {"provider": "cpu", "dtype": "bf16"},
            "onnxruntime's CPU has no kernels in bfloat16; choose float32 or float16, or make the file for cuda",
        ),
    ],
)
def test_an_unknown_target_names_the_legal_ones(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchcError) as caught:
        Target(**choice)
    assert str(caught.value) == message


def test_heads_too_large_for_the_delta_rule_on_cuda_are_refused(tmp_path: Path) -> None:
    mixer = "{kind: gated_deltanet, num_key_heads: 1, num_value_heads: 1, key_head_dim: 60000, value_head_dim: 7}"
    graph = expand(loads_spec(spec_text(mixer)))
    with pytest.raises(GraphError) as caught:
        export(graph, tmp_path / "out")
    assert str(caught.value) == (
        "layers.0.mixer.delta_rule: linear attention heads of 60000 x 7 need 1680000 bytes of shared memory on CUDA, more "
        "than any device has, and would fail at the first prompt; key_dim 64 or 128 with value_dim a multiple of 32 runs "
        "everywhere; so does provider cpu"
    )
    assert not (tmp_path / "out").exists()
    export(graph, tmp_path / "out", provider="cpu", dtype="float32")


def test_queries_keys_and_values_are_one_product_that_attention_reads(exported: Callable[..., Any]) -> None:
    model = exported("wide", "float16")
    attention = [node for node in nodes_of(model) if node.op_type == "GroupQueryAttention"]
    assert [list(node.input[:3]) for node in attention] == [
        [f"layers.{layer}.mixer.q_proj+k_proj+v_proj/{last}", "", ""] for layer, last in ((0, "MatMul"), (1, "Add"))
    ]
    assert all({item.name: item.i for item in node.attribute}["do_rotary"] == 1 for node in attention)
    assert "RotaryEmbedding" not in kinds_of(model)
    assert max(uniform_error(model, *way) for way in WAYS.values()) < 2e-2


def test_linears_of_one_input_are_packed_for_cuda_and_apart_on_the_cpu(exported: Callable[..., Any]) -> None:
    names = {node.name for node in nodes_of(exported("llama", "float16"))}
    assert "layers.0.ffn.gate_proj+up_proj/MatMul" in names
    assert {"layers.0.ffn.gate_proj/MatMul", "layers.0.ffn.up_proj/MatMul"} <= {
        node.name for node in nodes_of(exported("llama", "float32"))
    }


def test_latent_rows_are_all_that_mla_keeps(exported: Callable[..., Any]) -> None:
    model = exported("deepseek-v3", "float32")
    caches = {cache.name: cache.shape for cache in model.report.caches}
    assert caches == {f"past_key_values.{layer}.latent": ("batch", 1, "capacity", 24) for layer in (0, 1)}


def test_one_buffer_serves_past_and_present_of_every_cache(exported: Callable[..., Any]) -> None:
    import json

    for name in (*FAMILIES, "gqa keys", "slopes", "mla and kda keys"):
        for dtype in ("float32", "float16"):
            caches = json.loads((exported(name, dtype).folder / "archc.json").read_text("utf-8"))["caches"]
            assert all(cache["in_place"] for cache in caches), name


def test_vocabulary_of_the_pruned_head_is_whole(exported: Callable[..., Any]) -> None:
    graph = onnx.load(
        exported("llama", "float32", prune_head=True).folder / "model.onnx", load_external_data=False
    ).graph
    dims = [dim.dim_param or dim.dim_value for dim in graph.output[0].type.tensor_type.shape.dim]
    assert dims == ["batch", 1, VOCABULARY]
