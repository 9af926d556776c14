"""What is in the file: caches, names, weights once, fused ops; and what happens to files when an export fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from archc import registry
from archc.errors import ArchcError, CheckFailedError, GraphError
from archc.expansion import expand
from archc.graph.graph import Graph, state_elements
from archc.graph.vocabulary import Builder
from archc.ir.op import Op
from archc.ir.values import Body, Call, Node, State
from archc.ops.elementwise import Activation
from archc.spec.load import loads_spec
from archc_exporters.onnx.export import export
from archc_exporters.onnx.states import onnx_state_names

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

ARCHITECTURES = (
    "llama",
    "gpt-oss",
    "deepseek-v3",
    "kimi-linear",
    "qwen3-next",
    "granite-hybrid",
    "gqa keys",
    "mla and kda keys",
    "moe keys",
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_cache_inputs_are_what_the_graph_allocates(exported: Callable[..., Any], name: str) -> None:
    model = exported(name, "float32")
    graph: Graph = model.graph
    caches = model.conversation(3).caches
    names = onnx_state_names(graph)
    tokens = 28
    env = {"batch": 3, "capacity": graph.capacity(tokens)}
    assert {
        names[key]: graph.state_shape(state, batch=3, max_model_len=tokens) for key, state in graph.states().items()
    } == {key: cache.shape for key, cache in caches.items()}
    wanted = sum(state_elements(state, env, allocated=True) * 4 for state in graph.states().values())
    assert wanted == sum(cache.nbytes for cache in caches.values())
    reported = model.report.caches
    assert wanted == 3 * sum(c.bytes_per_sequence + c.bytes_per_token * env["capacity"] for c in reported)


def test_caches_are_named_by_layer_and_ending(exported: Callable[..., Any]) -> None:
    names = onnx_state_names(exported("kimi-linear", "float32").graph)
    assert list(names.values()) == [
        "past_key_values.0.conv_state",
        "past_key_values.0.recurrent_state",
        "past_key_values.1.conv_state",
        "past_key_values.1.recurrent_state",
        "past_key_values.2.latent",
    ]


def test_two_caches_of_one_ending_keep_the_sub_layer_between() -> None:
    def layer(*paths: str) -> Body:
        body = Body("layer")
        states = {path: State(path, (1,), (1,), growth="append", role="kv") for path in paths}
        body.items.append(Node(Activation(function="silu"), "", (), (), {}, states))
        return body

    root = Body("model")
    root.items.append(Call("layers.0", layer("self.attention.key", "cross.attention.key"), (), ()))
    root.items.append(Call("decoder.layers.0", layer("self.attention.key"), (), ()))
    assert list(onnx_state_names(Graph("two", root, "float32", None, None, 1)).values()) == [
        "past_key_values.0.self.key",
        "past_key_values.0.cross.key",
        "past_key_values.decoder.0.key",
    ]


def test_a_hybrid_is_made_of_fused_nodes(exported: Callable[..., Any]) -> None:
    model = exported("kimi-linear", "float16")
    fused = {
        "com.microsoft.LinearAttention": 2,
        "com.microsoft.CausalConvWithState": 2,
        "com.microsoft.MoE": 2,
        "Attention": 1,
    }
    assert {op: model.report.nodes.get(op) for op in fused} == fused
    proto = onnx.load(model.folder / "model.onnx", load_external_data=False)
    assert proto.ir_version == 10
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 24, "com.microsoft": 1}


def test_node_names_read_like_the_architecture(exported: Callable[..., Any]) -> None:
    proto = onnx.load(exported("llama", "float16").folder / "model.onnx", load_external_data=False)
    names = {node.name for node in proto.graph.node}
    assert {
        "layers.1.mixer.q_proj+k_proj+v_proj/MatMul",
        "layers.0.mixer.attention/GroupQueryAttention",
        "layers.0.ffn_norm/SkipSimplifiedLayerNormalization",
        "lm_head/MatMul",
    } <= names
    assert len(names) == len(proto.graph.node)


def test_weights_lie_in_the_data_file_by_a_relative_name(exported: Callable[..., Any]) -> None:
    model = exported("gpt-oss", "float32")
    proto = onnx.load(model.folder / "model.onnx", load_external_data=False)
    weights = [t for t in proto.graph.initializer if not t.name.startswith("constants/")]
    locations = {entry.value for tensor in weights for entry in tensor.external_data if entry.key == "location"}
    outside = [
        t.name for t in weights if t.data_location != onnx.TensorProto.EXTERNAL and not t.name.startswith("rope_")
    ]
    assert locations == {"model.onnx.data"}
    assert not outside


def test_a_tied_table_is_stored_once_and_without_its_padding(exported: Callable[..., Any]) -> None:
    model = exported("gqa keys", "float32")
    padded = (64 - 61) * 32 * 4
    # The head's bias has as many rows as the table.
    tables = (model.folder / "model.onnx.data").stat().st_size - (model.report.weight_bytes - padded - 3 * 4)
    constants = 4 * 4096
    assert 0 <= tables < constants
    proto = onnx.load(model.folder / "model.onnx", load_external_data=False)
    assert [dim.dim_value for dim in proto.graph.output[0].type.tensor_type.shape.dim][2] == 61


def test_a_model_without_a_head_ends_in_hidden_states(exported: Callable[..., Any]) -> None:
    proto = onnx.load(exported("mla and kda keys", "float32").folder / "model.onnx", load_external_data=False)
    assert proto.graph.output[0].name == "hidden_states"


@pytest.mark.parametrize("name", ["kimi-linear", "gqa keys"])
def test_bfloat16_has_the_same_nodes_and_is_judged_by_its_float32_twin(
    exported: Callable[..., Any], name: str, tmp_path: Path
) -> None:
    half = exported(name, "float16")
    report = export(half.graph, tmp_path, dtype="bf16", weights=half.weights)
    without_casts = {op: count for op, count in report.nodes.items() if op != "Cast"}
    assert without_casts == {op: count for op, count in half.report.nodes.items() if op != "Cast"}
    assert any(line.startswith("float32 twin") for line in report.checks)


def test_the_report_is_plain_data_and_gives_reasons(exported: Callable[..., Any]) -> None:
    report = exported("kimi-linear", "float32").report
    data = json.loads(json.dumps(report.to_json()))
    assert data["capacity"] == "ceil(max_model_len / 8) * 8"
    assert any(choice["op"] == "latent_attention" and "If(seq > 1)" in choice["form"] for choice in data["choices"])
    assert any("bfloat16" in note for note in data["notes"])


def test_random_weights_depend_on_seed_and_name_only(exported: Callable[..., Any], tmp_path: Path) -> None:
    graph = exported("llama", "float32").graph
    data: list[bytes] = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        export(graph, tmp_path / folder, dtype="float32", seed=seed, check=False)
        data.append((tmp_path / folder / "model.onnx.data").read_bytes())
    assert data[0] == data[1] != data[2]


def test_shards_and_bfloat16_weights_are_read(exported: Callable[..., Any], tmp_path: Path) -> None:
    model = exported("llama", "float32")
    tensors = {name: array.astype(ml_dtypes.bfloat16) for name, array in load_file(model.weights).items()}
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, tmp_path / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    export(model.graph, tmp_path / "out", dtype="bfloat16", weights=tmp_path, check=False)
    proto = onnx.load(tmp_path / "out" / "model.onnx")
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    wanted = tensors["layers.1.ffn.down_proj.weight"].T
    assert stored["layers.1.ffn.down_proj.weight.transposed"].raw_data == np.ascontiguousarray(wanted).tobytes()


def test_weights_that_do_not_fit_are_all_named(exported: Callable[..., Any], tmp_path: Path) -> None:
    model = exported("llama", "float32")
    tensors = load_file(model.weights)
    tensors["stranger"] = tensors.pop("norm.weight")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:5].copy()
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(ArchcError) as caught:
        export(model.graph, tmp_path / "out", weights=tmp_path / "w.safetensors")
    for part in ("norm.weight", "stranger", "lm_head.weight is [5, 32], not [61, 32]"):
        assert part in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_failed_export_leaves_the_earlier_files_alone(exported: Callable[..., Any], tmp_path: Path) -> None:
    model = exported("llama", "float32")
    out = tmp_path / "out"
    export(model.graph, out, dtype="float32", weights=model.weights)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(before) == ["archc.json", "model.onnx", "model.onnx.data"]
    tensors = load_file(model.weights)
    tensors["norm.weight"] = np.full_like(tensors["norm.weight"], np.nan)
    save_file(tensors, tmp_path / "nan.safetensors")
    with pytest.raises(CheckFailedError, match="not finite"):
        export(model.graph, out, dtype="float32", weights=tmp_path / "nan.safetensors")
    tensors["norm.weight"] = np.full_like(tensors["norm.weight"], 1e6)
    save_file(tensors, tmp_path / "large.safetensors")
    with pytest.raises(ArchcError, match=r"norm\.weight has values that float16 can't hold"):
        export(model.graph, out, dtype="float16", weights=tmp_path / "large.safetensors")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@dataclass(frozen=True, slots=True, kw_only=True)
class Negate(Op):
    """A stranger's op."""

    op_name = "negate"

    def infer(self, inputs: Any) -> Any:
        return (inputs[0],)


def strange_graph() -> Graph:
    g = Builder()
    x, _ = g.embedding("embed_tokens", g.sources["input_ids"], 8, 4)
    (y,) = g.emit(Negate(), (x,))
    g.root.outputs.append(y)
    return Graph("strange", g.root, "float32", 8, None, 0, inputs=g.inputs, outputs={"hidden_states": y})


def test_a_stranger_brings_an_op_with_its_lowering(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="the op negate has no lowering to ONNX"):
        export(strange_graph(), tmp_path, dtype="float32")
    with registry.temporary({("onnx", "negate"): lambda ctx, node, value: ctx.op("Neg", value)}):
        assert export(strange_graph(), tmp_path, dtype="float32").nodes == {"Gather": 1, "Neg": 1}


def test_a_lowering_that_works_at_one_size_only_is_caught(tmp_path: Path) -> None:
    def at_one_size(ctx: Any, node: Node, value: Any) -> Any:
        return ctx.op("Reshape", value, ctx.ints(1, 5, 4))

    with (
        registry.temporary({("onnx", "negate"): at_one_size}),
        pytest.raises(CheckFailedError, match="onnxruntime refuses the file"),
    ):
        export(strange_graph(), tmp_path / "out", dtype="float32")
    assert not (tmp_path / "out").exists()


def test_a_rope_table_covers_the_capacity(exported: Callable[..., Any], tmp_path: Path) -> None:
    graph = exported("llama", "float32").graph
    report = export(graph, tmp_path, max_model_len=9)
    proto = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert report.max_model_len == 9
    assert [list(table.dims) for table in proto.graph.initializer if table.name == "rope_0.cos"] == [[16, 4]]


def spec_text(mixer: str, cache: str = "") -> str:
    return f"""
spec_version: 1
name: one
tokenizer: {{kind: external, vocab_size: 8}}
embedding: {{hidden_size: 8, tie_word_embeddings: true}}
position: none
norm: {{kind: rms_norm, eps: 1e-5}}
mixers: {{a: {mixer}}}
ffns: {{f: {{kind: swiglu, intermediate_size: 8}}}}
stack: {{num_layers: 1, block: pre_norm, mixer: a, ffn: f}}
{cache}
"""


def test_a_quantised_cache_is_refused_with_what_is_legal(tmp_path: Path) -> None:
    text = spec_text("{kind: gqa, num_heads: 1, num_kv_heads: 1, head_dim: 12}", "cache: {policy: full, dtype: int8}")
    with pytest.raises(
        ArchcError, match=r"attention.key \(N = 0\).*a head of 12 is no multiple of 8\n.*cache dtype int8"
    ):
        export(expand(loads_spec(text)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_heads_too_large_for_some_devices_are_remarked(tmp_path: Path) -> None:
    report = export(expand(loads_spec(spec_text("{kind: kda, num_heads: 1, head_dim: 160}"))), tmp_path)
    assert any("160 x 160 need 102400 bytes of shared memory" in note for note in report.notes)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from archc.expansion import expand
from archc.spec.load import loads_spec
from archc_exporters.onnx.export import export
export(expand(loads_spec(sys.argv[1])), Path(sys.argv[2]))
assert "torch" not in sys.modules
"""
    text = spec_text("{kind: gqa, num_heads: 1, num_kv_heads: 1, head_dim: 8}")
    subprocess.run([sys.executable, "-c", code, text, str(tmp_path)], check=True)
