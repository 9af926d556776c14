"""``archc inspect`` and ``archc export --check-provider``: what they print, and how they end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

Invoke = Callable[..., Result]
TINY = "tiny-kimi-linear"

pytestmark = pytest.mark.onnx


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hybrid made for CUDA."""
    from archc.expansion import expand
    from archc.spec.load import load_spec
    from archc_exporters.onnx.export import export

    out = tmp_path_factory.mktemp("inspected") / "out"
    export(expand(load_spec(TINY)), out, check=False)
    return out


@pytest.fixture
def hardmax(tmp_path: Path) -> Path:
    """A file whose middle node has no CUDA kernel."""
    from onnx import TensorProto, helper

    names = ("x", "p", "q", "y")
    nodes = [
        helper.make_node(op, [names[i]], [names[i + 1]], name=f"{i} {op}")
        for i, op in enumerate(["Relu", "Hardmax", "Relu"])
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "middle", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    path = tmp_path / "middle.onnx"
    onnx.save(model, path)
    return path


def test_a_folder_is_described_and_passes(exported: Path, invoke: Invoke):
    done = invoke("inspect", exported, "--fail-on-cpu", "--fail-on-memcpy")
    assert done.exit_code == 0, done.output
    for text in (
        "opsets ai.onnx 24, com.microsoft 1",
        "past_key_values.",
        "placement for cuda:",
        "com.microsoft.LinearAttention",
        "shape arithmetic, which onnxruntime keeps on the CPU on purpose",
        "Memcpy nodes: 0",
    ):
        assert text in done.output


def test_json_has_the_outline_and_the_placement(exported: Path, invoke: Invoke):
    done = invoke("inspect", exported / "model.onnx", "--json")
    found = json.loads(done.output)
    model = onnx.load(exported / "model.onnx", load_external_data=False)
    assert found["ir_version"] == 10
    assert found["files"] == {"model.onnx.data": (exported / "model.onnx.data").stat().st_size}
    assert [cache["name"] for cache in found["caches"]] == [v.name for v in model.graph.input if "past_key" in v.name]
    assert all(cache["output"] == cache["name"].replace("past_key_values", "present") for cache in found["caches"])
    told = json.loads((exported / "archc.json").read_text("utf-8"))
    assert [(c["name"], c["bytes_per_token"], c["bytes_per_sequence"]) for c in found["caches"]] == [
        (c["input"], c["bytes_per_token"], c["bytes_per_sequence"]) for c in told["caches"]
    ]
    placement = found["placement"]
    assert sum(placement["counts"].values()) == found["nodes"] == sum(told["report"]["nodes"].values())
    assert placement["memcpy"] == []
    assert {node["reason"] for node in placement["off"]} <= {"cpu-preferred"}
    assert found["failed"] == []


def test_weights_may_be_missing(exported: Path, invoke: Invoke, tmp_path: Path):
    shutil.copy(exported / "model.onnx", tmp_path)
    done = invoke("inspect", tmp_path)
    assert done.exit_code == 0
    assert "model.onnx.data: missing" in done.output


def test_a_node_that_leaves_the_gpu_is_a_failed_check_on_request(hardmax: Path, invoke: Invoke):
    assert invoke("inspect", hardmax).exit_code == 0
    done = invoke("inspect", hardmax, "--fail-on-cpu")
    assert done.exit_code == 1
    assert "1 node is not on cuda: 1 Hardmax" in done.output
    assert "leaves the GPU: Hardmax: no kernel is registered for it" in done.output
    done = invoke("inspect", hardmax, "--fail-on-memcpy", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["failed"] == ["2 values are copied between CPU and GPU at every run: q, p"]
    assert [copy["op"] for copy in found["placement"]["memcpy"]] == ["MemcpyFromHost", "MemcpyToHost"]
    assert invoke("inspect", hardmax, "--provider", "cpu", "--fail-on-cpu", "--fail-on-memcpy").exit_code == 0


def test_a_missing_file_and_one_that_is_no_model_are_errors(invoke: Invoke, tmp_path: Path):
    text = tmp_path / "text.onnx"
    text.write_text("no model")
    for path, words in (
        (tmp_path / "missing.onnx", "can't be read"),
        (text, "is no ONNX model"),
        (tmp_path, "can't be read"),
    ):
        done = invoke("inspect", path)
        assert done.exit_code == 2
        assert words in done.output
        assert "Traceback" not in done.output


def test_an_export_prints_and_reports_where_its_nodes_go(invoke: Invoke, tmp_path: Path):
    out = tmp_path / "out"
    done = invoke("export", TINY, "-o", out, "--no-check", "--check-provider", "cuda")
    assert done.exit_code == 0, done.output
    assert "placement for cuda:" in done.output
    assert "Memcpy nodes: 0" in done.output
    told = json.loads((out / "archc.json").read_text("utf-8"))
    assert told["report"]["placement"]["provider"] == "cuda"


def test_an_export_that_would_leave_its_provider_is_refused(invoke: Invoke, tmp_path: Path):
    out = tmp_path / "out"
    done = invoke("export", TINY, "-o", out, "--dtype", "bf16", "--no-check", "--check-provider", "cpu")
    assert done.exit_code == 1
    assert "model.onnx does not run on cpu" in done.output
    assert "MatMul fails: T is bfloat16" in done.output
    assert "float16 or float32" in done.output
    assert not out.exists()
