"""Integer weights: numbers against onnxruntime's, error bounds, what is quantised and what not, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("onnxruntime")

from archc.errors import ArchcError
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.load import loads_spec
from archc_exporters.onnx import quality
from archc_exporters.onnx.blocks import dequantize, quantize
from archc_exporters.onnx.export import export
from archc_exporters.onnx.lower import lower_graph
from archc_exporters.onnx.quality import quality_loss
from archc_exporters.onnx.quantize import QuantizedWeights, quantize_weights
from archc_exporters.onnx.session import Conversation, load_session
from archc_exporters.onnx.sources import RandomWeights
from archc_exporters.onnx.target import BLOCK_SIZES, Quantization, Target
from archc_exporters.onnx.weights import NUMPY_DTYPES
from archc_exporters.onnx.write import write
from tests.onnx.placement_judge import judged, needs_check
from tests.onnx.test_blocks import matrix_of

pytestmark = pytest.mark.onnx

DENSE = """
spec_version: 1
name: dense
tokenizer: {kind: external, vocab_size: 300}
embedding: {hidden_size: 256, tie_word_embeddings: TIED}
norm: {kind: rms_norm, eps: 1e-5}
position: {kind: rope, theta: 10000.0}
max_position_embeddings: 64
mixers: {gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 64, qkv_bias: true}}
ffns: {mlp: {kind: swiglu, intermediate_size: 384}}
stack: {num_layers: 2, block: pre_norm, mixer: gqa, ffn: mlp}
"""
HYBRID = """
spec_version: 1
name: hybrid
tokenizer: {kind: external, vocab_size: 300}
embedding: {hidden_size: 256, tie_word_embeddings: false}
norm: {kind: rms_norm, eps: 1e-5}
position: none
max_position_embeddings: 64
mixers:
  kda: {kind: kda, num_heads: 2, head_dim: 64, conv_kernel: 4}
  mla: {kind: mla, num_heads: 2, kv_lora_rank: 128, qk_nope_head_dim: 48, qk_rope_head_dim: 16, v_head_dim: 48}
ffns:
  dense: {kind: swiglu, intermediate_size: 384}
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    num_shared_experts: 1
    intermediate_size: 128
    router: {scoring_func: sigmoid, correction_bias: true, norm_topk_prob: true, routed_scaling_factor: 2.446}
stack: {num_layers: 2, block: pre_norm, mixer: kda mla, ffn: dense moe}
"""
SPECS = {"tied": DENSE.replace("TIED", "true"), "untied": DENSE.replace("TIED", "false"), "hybrid": HYBRID}
RELATIVE_RMS = {("tied", 4): 0.3, ("untied", 4): 0.3, ("hybrid", 4): 0.4}
RELATIVE_RMS |= {("tied", 8): 0.03, ("untied", 8): 0.03, ("hybrid", 8): 0.1}
"""Bound of the logits' error over their spread, for two layers of normal random weights; about two thirds were measured.

Of the hybrid's tokens one has other experts than in the float file: rounding moves its scores past each other.
"""


@cache
def graph_of(name: str) -> Graph:
    return expand(loads_spec(SPECS[name]))


class Exports:
    """Files by (spec, dtype, provider, quantisation), each written once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[Any, tuple[Path, QuantizedWeights | None]]()

    def get(
        self, name: str, quant: Quantization | None, dtype: str = "float32", provider: str = "cuda"
    ) -> tuple[Path, QuantizedWeights]:
        key = (name, quant, dtype, provider)
        if key not in self._made:
            folder = self._folder / str(len(self._made))
            folder.mkdir()
            target = Target(provider=provider, dtype=dtype, quant=quant)  # pyright: ignore[reportArgumentType]
            weights = RandomWeights(0, target.ir_dtype)
            model, ctx = lower_graph(graph_of(name), target=target, weights=weights, max_model_len=64)
            write(model, folder)
            self._made[key] = folder / "model.onnx", ctx.quantization
        path, found = self._made[key]
        return path, found  # pyright: ignore[reportReturnType] - None is never read

    def logits(self, name: str, *choice: Any) -> np.ndarray:
        """Of 2 x 12 tokens at once and 4 more one by one."""
        path, _ = self.get(name, *choice)
        talk = Conversation(load_session(path, threads=1), batch=2, capacity=graph_of(name).capacity(32))
        ids = np.random.default_rng(0).integers(0, 300, (2, 16))
        parts = [talk.step(ids[:, :12]), *(talk.step(ids[:, at : at + 1]) for at in range(12, 16))]
        return np.concatenate(parts, 1)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return Exports(tmp_path_factory.mktemp("quantised"))


def value(name: str, shape: Sequence[int | str], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def weight(name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)


def run(graph: ir.Graph, folder: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    folder.mkdir(exist_ok=True)
    write(ir.Model(graph, ir_version=10), folder)
    return [np.asarray(y) for y in load_session(folder / "model.onnx", threads=1).run(None, feeds)]


def products(matrix: np.ndarray, inputs: list[ir.Value], nodes: list[ir.Node], weights: list[ir.Value]) -> ir.Graph:
    return ir.Graph(
        inputs,
        [node.outputs[0] for node in nodes],
        nodes=nodes,
        initializers=weights,
        opset_imports={"": 24, "com.microsoft": 1},
        name="products",
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("bits", [4, 8])
def test_onnxruntime_applies_the_numbers_that_were_written(
    tmp_path: Path, bits: int, block_size: int, symmetric: bool, dtype: str
) -> None:
    """A product (K, N), a table (N, K) that a product and a gather share; an identity shows the whole matrix."""
    target = Target(dtype=dtype, quant=Quantization(bits=bits, block_size=block_size, symmetric=symmetric))
    own = NUMPY_DTYPES[target.ir_dtype]
    matrix = matrix_of(130, 384).astype(own)
    x, ids = value("x", ["n", 384], target.ir_dtype), value("ids", ["n", "m"], ir.DataType.INT64)
    turned, table = weight("turned", np.ascontiguousarray(matrix.T)), weight("table", matrix)
    tied = ir.node("FusedMatMul", [x, table], {"transB": 1}, domain="com.microsoft", name="tied/FusedMatMul")
    gather = ir.node("Gather", [table, ids], {"axis": 0}, name="embed/Gather")
    plain = ir.node("MatMul", [x, turned], name="plain/MatMul")
    for name, node in (("plain", plain), ("logits", tied), ("rows", gather)):
        node.outputs[0].name, node.outputs[0].type = name, ir.TensorType(target.ir_dtype)
        node.outputs[0].shape = ir.Shape(["n", 130] if name != "rows" else ["n", "m", 384])
    graph = products(matrix, [x, ids], [plain, tied, gather], [turned, table])
    found = quantize_weights(graph, target)
    assert found is not None
    assert found.nodes == {"MatMulNBits": 2, "GatherBlockQuantized": 1}
    blocks = quantize([matrix], 130, 384, bits=bits, block_size=block_size, symmetric=symmetric, scale_dtype=own)
    wanted = dequantize(blocks, bits)
    rounding = 2e-6 if dtype == "float32" else 2e-3
    every = np.arange(130)[None]
    one, two, rows = run(graph, tmp_path, x=np.eye(384, dtype=own), ids=every)
    for name, got in (("plain", one.T), ("tied", two.T), ("gathered", rows[0])):
        assert np.abs(got.astype(np.float32) - wanted).max() <= rounding * np.abs(wanted).max(), name


def expert_graph(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray], gated: bool) -> ir.Graph:
    count, width = weights[0].shape[0], weights[0].shape[2]
    x, router = value("x", ["n", width]), value("router", ["n", count])
    names = ("fc1", "fc1_bias", "fc2", "fc2_bias")
    given = [weight(n, array) for n, array in zip(names, (weights[0], biases[0], weights[1], biases[1]), strict=True)]
    numbers: dict[str, Any] = {"k": 2, "normalize_routing_weights": 1, "activation_type": "relu"}
    if gated:
        numbers |= {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0}
        numbers["swiglu_limit"] = 2.0
    y = value("y", ["n", width])
    node = ir.node("MoE", [x, router, *given], numbers, domain="com.microsoft", outputs=[y], name="experts/MoE")
    return products(weights[0], [x, router], [node], given)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block_size", [16, 32, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_experts_are_the_dequantised_float_experts(
    tmp_path: Path, bits: int, block_size: int, symmetric: bool, gated: bool
) -> None:
    rng = np.random.default_rng(1)
    inner, width = 128, 256
    shapes = ((4, inner * (2 if gated else 1), width), (4, width, inner))
    weights = [rng.standard_normal(shape).astype(np.float32) * shape[-1] ** -0.5 for shape in shapes]
    biases = [rng.standard_normal(shape[:2]).astype(np.float32) * 0.3 for shape in shapes]
    target = Target(dtype="float32", quant=Quantization(bits=bits, block_size=block_size, symmetric=symmetric))
    graph = expert_graph(weights, biases, gated)
    assert quantize_weights(graph, target) is not None
    # CUDA's kernel takes no blocks of 16, so they become 32.
    kind: dict[str, Any] = {"bits": bits, "block_size": max(32, block_size), "symmetric": symmetric}
    rounded = [
        dequantize(
            quantize([w.reshape(-1, w.shape[2])], w.shape[0] * w.shape[1], w.shape[2], **kind, scale_dtype=w.dtype),
            bits,
        ).reshape(w.shape)
        for w in weights
    ]
    feeds = {"x": rng.standard_normal((7, width)), "router": rng.standard_normal((7, 4))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    [wanted] = run(expert_graph(rounded, biases, gated), tmp_path / "float", **feeds)
    [found] = run(graph, tmp_path / "integer", **feeds)
    # With 8 bits onnxruntime's CPU rounds activations to int8 as well, whatever it is asked for.
    bound = 1e-5 if bits == 4 else 3e-2
    assert np.abs(found - wanted).max() < bound * np.abs(wanted).max()


@pytest.mark.parametrize("provider", ["cuda", "cpu"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", SPECS)
def test_logits_stay_near_those_of_the_float_file(
    exports: Exports, name: str, bits: int, symmetric: bool, provider: str
) -> None:
    quant = Quantization(bits=bits, symmetric=symmetric)
    loss = quality_loss(exports.logits(name, None), exports.logits(name, quant, "float32", provider))
    assert 0 < loss.relative_rms < RELATIVE_RMS[name, bits]
    assert loss.tokens == 32
    assert loss.mean_error <= loss.max_error


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", SPECS)
def test_float16_files_lose_what_float32_files_lose(exports: Exports, name: str, bits: int) -> None:
    loss = quality_loss(exports.logits(name, None), exports.logits(name, Quantization(bits=bits), "float16"))
    assert 0 < loss.relative_rms < RELATIVE_RMS[name, bits]


def test_smaller_blocks_and_zero_points_lose_less(exports: Exports) -> None:
    def loss(**choice: Any) -> float:
        found = exports.logits("untied", Quantization(bits=4, **choice))
        return quality_loss(exports.logits("untied", None), found).relative_rms

    assert loss(block_size=16) < loss(block_size=32) < loss(block_size=128)
    assert loss(block_size=32, symmetric=False) < loss(block_size=32)


def test_a_tied_table_is_in_the_file_once(exports: Exports) -> None:
    path, found = exports.get("tied", Quantization(bits=4))
    assert found.nodes["GatherBlockQuantized"] == 1
    table, head = 300 * 256, 256 * 256 * 2 + 3 * 256 * 384
    elements = table + 2 * (head + 256 * 128 * 2)
    assert found.float_bytes == 4 * elements
    assert found.quantized_bytes == elements // 2 + elements // 32 * 4
    assert path.with_name("model.onnx.data").stat().st_size < 0.2 * 4 * elements


def test_the_embedding_stays_unless_it_is_tied_or_asked_for(exports: Exports) -> None:
    def kept(name: str, **choice: Any) -> set[str]:
        return {w for names in exports.get(name, Quantization(bits=4, **choice))[1].kept.values() for w in names}

    assert kept("untied") == {"embed_tokens.weight"}
    assert kept("untied", embedding=True) == set()
    assert kept("untied", head=False) == {"embed_tokens.weight", "lm_head.weight.transposed"}
    assert kept("tied") == set()
    assert kept("tied", head=False) == {"embed_tokens.weight"}
    # The head reads integers, the embedding the floats beside them.
    assert kept("tied", embedding=False) == {"embed_tokens.weight"}


@pytest.mark.parametrize("choice", [{"head": False, "embedding": True}, {"embedding": False}])
def test_half_of_a_tied_pair_may_stay_in_float(exports: Exports, choice: dict[str, bool]) -> None:
    loss = quality_loss(exports.logits("tied", None), exports.logits("tied", Quantization(bits=8, **choice)))
    assert 0 < loss.relative_rms < RELATIVE_RMS["tied", 8]


def test_routers_gates_and_stacks_stay_in_float_for_a_reason(exports: Exports) -> None:
    _, found = exports.get("hybrid", Quantization(bits=4))
    reasons = {reason.split(":")[0].split(",")[0]: names for reason, names in found.kept.items()}
    assert reasons["a router"] == ("layers.1.ffn.router.weight.transposed",)
    assert reasons["a stack of matrices"] == (
        "layers.1.mixer.attention.kv_b_proj.weight.keys",
        "layers.1.mixer.attention.kv_b_proj.weight.values",
    )
    assert any("b_proj" in name for name in reasons["a side below 128"])
    assert found.nodes["QMoE"] == 1


def test_a_width_that_does_not_divide_gets_smaller_blocks_or_none(tmp_path: Path) -> None:
    for columns, wanted in ((192, 64), (144, 16), (132, None)):
        x, given = value("x", ["n", columns]), weight("w", np.ones((columns, 128), np.float32))
        node = ir.node("MatMul", [x, given], outputs=[value("y", ["n", 128])], name="a/MatMul")
        graph = products(np.ones(1), [x], [node], [given])
        found = quantize_weights(graph, Target(dtype="float32", quant=Quantization(bits=4, block_size=128)))
        assert found is not None
        sizes = [n.attributes["block_size"].as_int() for n in graph if n.op_type == "MatMulNBits"]
        assert sizes == ([] if wanted is None else [wanted])
        assert bool(found.kept) == (wanted is None)


def test_experts_that_cuda_refuses_stay_in_float_there_alone() -> None:
    def nodes(provider: Any, inner: int) -> dict[str, int]:
        weights = [np.ones((4, 2 * inner, 256), np.float32), np.ones((4, 256, inner), np.float32)]
        graph = expert_graph(weights, [w[:, :, 0] for w in weights], gated=True)
        found = quantize_weights(graph, Target(provider=provider, dtype="float32", quant=Quantization(bits=4)))
        assert found is not None
        return found.nodes

    assert nodes("cuda", 96) == {}
    assert nodes("cpu", 96) == nodes("cuda", 64) == {"QMoE": 1}


@pytest.mark.parametrize(("choice", "words"), [({"bits": 3}, "int4, int8"), ({"bits": 4, "block_size": 48}, "16, 32")])
def test_what_no_kernel_takes_is_refused(choice: dict[str, int], words: str) -> None:
    with pytest.raises(ArchcError, match=words):
        Quantization(**choice)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_report_says_what_was_rounded_and_what_it_costs(tmp_path: Path, dtype: str) -> None:
    report = export(graph_of("untied"), tmp_path / "out", dtype=dtype, max_model_len=64, quant="int4", check=True)
    assert report.quantization is not None
    assert report.quantization.nodes == {"MatMulNBits": 9}
    assert report.nodes["com.microsoft.MatMulNBits"] == 9
    assert not isinstance(report.quality, str)
    assert 0 < report.quality.relative_rms < RELATIVE_RMS["untied", 4]
    assert 0 <= report.quality.top1_agreement <= 1
    assert report.quality.tokens == 96
    assert ("twins" in report.quality.measured_on) == (dtype == "bfloat16")
    data = (tmp_path / "out" / "model.onnx.data").stat().st_size
    # But for padding, and for small constants, which lie in the model file.
    assert abs(data - report.quantization.quantized_bytes - report.quantization.kept_bytes) < 4096


def test_a_model_too_large_for_a_twin_is_measured_at_fewer_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = expand(loads_spec(SPECS["untied"].replace("num_layers: 2", "num_layers: 6")))
    whole = sum(param.elements * 4 for param in graph.params().values())
    monkeypatch.setattr(quality, "_TWIN_LIMIT_BYTES", whole - 1)
    report = export(graph, tmp_path / "out", max_model_len=64, quant="int8")
    assert isinstance(report.quality, quality.QualityLoss)
    assert "of 6 layers" in report.quality.measured_on
    assert 0 < report.quality.relative_rms < RELATIVE_RMS["untied", 8]
    monkeypatch.setattr(quality, "_TWIN_LIMIT_BYTES", 1000)
    report = export(graph, tmp_path / "out", max_model_len=64, quant="int8")
    assert "not measured: a float twin would need" in str(report.quality)


def test_what_can_not_be_run_is_not_measured(tmp_path: Path) -> None:
    for choice in ({"check": False}, {"no_weights": True}):
        report = export(graph_of("tied"), tmp_path / "out", max_model_len=64, quant="int8", **choice)  # pyright: ignore[reportArgumentType]
        assert "not measured" in str(report.quality)
        assert report.quantization is not None


def test_a_float_file_says_nothing_of_rounding_and_takes_no_choice_of_it(tmp_path: Path) -> None:
    report = export(graph_of("tied"), tmp_path / "out", max_model_len=64)
    assert (report.quantization, report.quality) == (None, "")
    with pytest.raises(ArchcError, match="block_size"):
        export(graph_of("tied"), tmp_path / "out", max_model_len=64, quant_block_size=64)


@needs_check
@pytest.mark.parametrize("name", ["tied", "hybrid"])
def test_every_node_has_a_kernel_on_cuda(exports: Exports, name: str) -> None:
    path, _ = exports.get(name, Quantization(bits=4, symmetric=False), "float16")
    lengths = {"past_length": 7, "seq_length": 1, "kv_length": 8, "max_length": 8}
    fills = [part for name, number in lengths.items() for part in ("--fill", f"{name}={number}")]
    done = judged(path, "--fail-on-nokernel", "--fail-on-memcpy", "--run", "batch=1,seq=1,capacity=32", *fills)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
