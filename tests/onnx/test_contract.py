"""``archc.json`` and what lies beside it: sizes that equal the estimate, caches that may share a buffer, the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from archc.errors import ArchcError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.load import load_spec
from archc.spec.resolved import resolved
from archc_exporters.onnx.contract import bindable_to_one_buffer, contract
from archc_exporters.onnx.export import export
from archc_exporters.onnx.lower import lower_graph
from archc_exporters.onnx.report import ExportReport, cache_inputs
from archc_exporters.onnx.sources import RandomWeights
from archc_exporters.onnx.target import Target

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

BYTES = """
spec_version: 1
name: bytes
tokenizer: {kind: bytes, eos_token_id: 256}
norm: {kind: rms_norm, eps: 1e-5}
max_position_embeddings: 40
position: {kind: rope, theta: 10000.0}
embedding: {hidden_size: 32, tie_word_embeddings: false}
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 1, block: pre_norm, mixer: gqa, ffn: mlp}
"""


def of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "archc.json").read_text("utf-8"))


def unweighed(graph: Graph, target: Target, max_model_len: int) -> dict[str, Any]:
    """The contract of a graph that is lowered and never written."""
    weights = RandomWeights(0, target.ir_dtype)
    model, ctx = lower_graph(graph, target=target, weights=weights, max_model_len=max_model_len)
    report = ExportReport(
        name=graph.name,
        dtype=target.dtype,
        files={},
        weight_bytes=0,
        opsets={},
        ir_version=10,
        onnxruntime="",
        max_model_len=max_model_len,
        capacity="",
        nodes={},
        caches=cache_inputs(ctx),
        choices=(),
        checks=(),
        notes=(),
    )
    return contract(model, graph, report, target=asdict(target))


def total_bytes(caches: list[dict[str, Any]], rows: int) -> int:
    return sum(cache["bytes_per_sequence"] + cache["bytes_per_token"] * rows for cache in caches)


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "deepseek-v3", "kimi-linear", "qwen3-next"])
def test_cache_bytes_are_those_of_the_estimate(exported: Callable[..., Any], name: str) -> None:
    model = exported(name, "float16")
    told = of(model.folder)
    length = 37
    cost = estimate(model.graph, dtype="float16", kv_cache_dtype="float16", max_model_len=length).cache
    assert sum(cache["bytes_per_token"] for cache in told["caches"]) == cost.bytes_per_token
    assert total_bytes(told["caches"], cost.capacity_rows) == cost.allocated_bytes


@pytest.mark.parametrize(
    ("name", "bytes_per_token"), [("kimi-linear-48b-a3b", 8_064), ("deepseek-v3", 70_272)], ids=lambda value: str(value)
)
def test_caches_of_a_large_model_are_as_large_as_the_estimate_says(name: str, bytes_per_token: int) -> None:
    graph = expand(load_spec(name))
    length = 131_072
    caches = unweighed(graph, Target(provider="cuda", dtype="bfloat16"), length)["caches"]
    cost = estimate(graph, dtype="bfloat16", kv_cache_dtype="bfloat16", max_model_len=length).cache
    assert sum(cache["bytes_per_token"] for cache in caches) == bytes_per_token == cost.bytes_per_token
    assert total_bytes(caches, length) == cost.allocated_bytes


def test_every_input_and_output_of_the_file_is_told(exported: Callable[..., Any]) -> None:
    model = exported("kimi-linear", "float32")
    told = of(model.folder)
    graph = onnx.load(model.folder / "model.onnx", load_external_data=False).graph

    def dims(value: onnx.ValueInfoProto) -> list[Any]:
        return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]

    caches = [{"name": cache["input"], "shape": cache["shape"]} for cache in told["caches"]]
    given = [{key: entry[key] for key in ("name", "shape")} for entry in told["inputs"]]
    assert [{"name": value.name, "shape": dims(value)} for value in graph.input] == given + caches
    made = [entry["name"] for entry in told["outputs"]] + [cache["output"] for cache in told["caches"]]
    assert [value.name for value in graph.output] == made
    assert {cache["growth"] for cache in told["caches"]} == {"append", "fixed"}
    assert (told["vocab_size"], told["max_model_len"], told["reserved_rows"]) == (61, 40, 0)


def test_files_are_listed_with_their_sizes_and_without_their_place(exported: Callable[..., Any]) -> None:
    folder = exported("llama", "float32").folder
    told = of(folder)
    assert told["files"] == {name: (folder / name).stat().st_size for name in ("model.onnx", "model.onnx.data")}
    assert str(folder) not in (folder / "archc.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("inputs", "in_place"),
    [
        # The node that makes the present reads the past alone.
        ((("Add", "past", "x", "present"),), True),
        # Another reader, which the maker waits for.
        ((("Mul", "past", "x", "y"), ("Add", "past", "y", "present")), True),
        # One that may run after the present was written over the past.
        ((("Add", "past", "x", "present"), ("Mul", "past", "x", "y")), False),
        ((("Mul", "past", "x", "y"), ("Add", "past", "x", "present")), False),
        # A shape may be asked for at any time.
        ((("Add", "past", "x", "present"), ("Shape", "past", "", "y")), True),
        # The maker reads a copy.
        ((("Neg", "past", "", "y"), ("Add", "y", "x", "present")), True),
    ],
)
def test_one_buffer_serves_where_no_reader_can_come_too_late(
    inputs: tuple[tuple[str, str, str, str], ...], in_place: bool
) -> None:
    names = {"past": "past_key_values.0.key", "present": "present.0.key", "x": "x", "y": "y"}
    nodes = [
        onnx.helper.make_node(op, [names[a], names[b]] if b else [names[a]], [names[out]]) for op, a, b, out in inputs
    ]
    made = [onnx.helper.make_tensor_value_info(names[name], onnx.TensorProto.FLOAT, [2]) for name in ("past", "x")]
    outputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in dict.fromkeys(names[out] for *_, out in inputs)
    ]
    model = ir.from_proto(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", made, outputs)))
    assert dict(bindable_to_one_buffer(model)) == {"past_key_values.0.key": in_place}


def test_the_spec_and_its_tokenizer_lie_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(BYTES)
    spec = resolved(tmp_path / "spec.yaml")
    out = tmp_path / "out"
    export(expand(spec.spec), out, provider="cpu", dtype="float32", spec=spec, check=False)
    told = of(out)
    assert set(told["files"]) == {"model.onnx", "model.onnx.data", "spec.yaml", "tokenizer.json"}
    assert told["special_token_ids"] == {"eos": [256]}
    written = load_spec(out / "spec.yaml")
    assert written.model_dump(exclude={"tokenizer"}) == spec.spec.model_dump(exclude={"tokenizer"})
    # The file that was made is the spec's own from now on.
    assert written.tokenizer.load(out).encode("ab").ids == [97, 98]


def test_a_tokenizer_can_be_handed_over_and_names_special_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "[END]": 2}, unk_token="a")
    given = tmp_path / "given"
    given.mkdir()
    tokenizers.Tokenizer(model).save(str(given / "tokenizer.json"))
    (given / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "[END]"}, "bos_token": "a"}))
    text = BYTES.replace("{kind: bytes, eos_token_id: 256}", "{kind: external, vocab_size: 3, bos_token_id: 1}")
    (tmp_path / "spec.yaml").write_text(text)
    spec = resolved(tmp_path / "spec.yaml")
    export(expand(spec.spec), tmp_path / "out", dtype="float32", spec=spec, tokenizer=given, check=False)
    told = of(tmp_path / "out")
    # What the spec states holds, the file fills in the rest.
    assert told["special_token_ids"] == {"eos": [2], "bos": [1]}
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (given / "tokenizer.json").read_bytes()
    assert load_spec(tmp_path / "out" / "spec.yaml").tokenizer.load(tmp_path / "out").token_to_id("b") == 1


def test_a_tokenizer_with_more_ids_than_the_spec_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    file = tmp_path / "tokenizer.json"
    vocabulary = {str(number): number for number in range(300)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="0")).save(str(file))
    (tmp_path / "spec.yaml").write_text(BYTES)
    spec = resolved(tmp_path / "spec.yaml")
    with pytest.raises(ArchcError, match="has the id 299, and the spec says that there are 257 ids"):
        export(expand(spec.spec), tmp_path / "out", dtype="float32", spec=spec, tokenizer=file)
    file.write_text("{}")
    with pytest.raises(ArchcError, match=r"is no tokenizer\.json"):
        export(expand(spec.spec), tmp_path / "out", dtype="float32", spec=spec, tokenizer=file)
    assert not (tmp_path / "out").exists()


def test_a_spec_that_only_counts_its_tokenizer_has_none(tmp_path: Path) -> None:
    spec = resolved("tiny-llama")
    export(expand(spec.spec), tmp_path, dtype="float32", spec=spec, check=False)
    assert of(tmp_path)["tokenizer"] is None
    assert not (tmp_path / "tokenizer.json").exists()
    assert np.all([size > 0 for size in of(tmp_path)["files"].values()])
