"""Predicted placements against onnxruntime-gpu's own CUDA provider, which a check beside the project runs on stand-in libraries.

The files are compared as they are written, node by node: the check loads them without graph optimisation. With it,
nodes are fused and removed, so only what is left under its name is compared, with the Memcpy nodes and the CPU's nodes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

from archc_exporters.onnx.export import export
from archc_exporters.onnx.placement.check import check_provider
from archc_exporters.onnx.placement.copies import copies
from archc_exporters.onnx.placement.predict import Scope, predict
from archc_exporters.onnx.placement.tables import SHORT
from tests.onnx.awkward import AWKWARD
from tests.onnx.conftest import ARCHITECTURES, graph_of
from tests.onnx.placement_judge import CHECK, judged, needs_check

KERNELS = CHECK.with_name("cuda_kernels.json")
LIBRARIES = Path(os.environ.get("ORT_PLACEMENT_DIR") or Path.home() / ".cache" / "ort-placement") / "shim" / "lib"
DTYPES = ("float16", "float32", "bfloat16")
OPTIMISED = ("llama", "gpt-oss", "deepseek-v3", "indexer", "kimi-linear", "qwen3-next", "forgetting")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "batched chunks": ("llama", {"batched_chunks": True}),
    "one row of logits": ("kimi-linear", {"prune_head": True}),
    "rolling windows": ("gpt-oss", {"sliding_window_cache": True}),
    "integer caches": ("llama", {"kv_cache_dtype": "int8"}),
    "integer weights": ("kimi-linear", {"quant": "int4"}),
    "made for the CPU": ("kimi-linear", {"provider": "cpu"}),
}
Judge = Callable[..., dict[str, Any]]

pytestmark = [
    pytest.mark.onnx,
    pytest.mark.torch,
    needs_check,
]


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """(file, optimisation) -> the report of the check. Its first call on a machine makes its environment."""
    answer = tmp_path_factory.mktemp("judge") / "answer.json"

    def run(file: Path, optimisation: str = "disable", *options: str) -> dict[str, Any]:
        done = judged(file, "--opt", optimisation, "--json", str(answer), *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(answer.read_text("utf-8"))

    return run


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(architecture, dtype, variant) -> model.onnx with random weights."""

    @cache
    def write(name: str, dtype: str, variant: str = "") -> Path:
        folder = tmp_path_factory.mktemp("placed")
        export(graph_of(name), folder / "out", dtype=dtype, check=False, **VARIANTS.get(variant, ("", {}))[1])
        return folder / "out" / "model.onnx"

    return write


def placed(root: Scope) -> dict[str, str]:
    return {site.name: SHORT[site.provider] for site in root.all_sites()}


def nodes_of(told: dict[str, Any]) -> dict[str, str]:
    """What the check tells of the file's own nodes."""
    return {node["name"]: node["ep"] for node in told["nodes"] if not node["op"].startswith("Memcpy")}


def predicted(path: Path) -> Scope:
    return predict(onnx.load(path, load_external_data=False), "cuda")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_node_of_every_file_goes_where_the_cuda_provider_puts_it(
    name: str, judge: Judge, written: Callable[..., Path]
) -> None:
    for dtype in DTYPES:
        path = written(name, dtype)
        found, told = predicted(path), judge(path)
        assert placed(found) == nodes_of(told), dtype
        reasons = {site.name: site.reason for site in found.all_sites() if site.provider != "cuda"}
        assert reasons == {node["name"]: node["why"] for node in told["cpu_nodes"]}, dtype
        assert len(copies(found)) == told["memcpy"], dtype


@pytest.mark.parametrize("variant", VARIANTS)
def test_choices_of_the_export_do_not_mislead_it(variant: str, judge: Judge, written: Callable[..., Path]) -> None:
    path = written(VARIANTS[variant][0], "float16", variant)
    found, told = predicted(path), judge(path)
    assert placed(found) == nodes_of(told)
    assert len(copies(found)) == told["memcpy"]


@pytest.mark.parametrize("name", OPTIMISED)
def test_optimised_graphs_keep_their_nodes_where_they_were(
    name: str, judge: Judge, written: Callable[..., Path]
) -> None:
    path = written(name, "float16")
    found, told = predicted(path), judge(path, "all")
    mine, theirs = placed(found), nodes_of(told)
    kept = mine.keys() & theirs.keys()
    assert len(kept) > 0.5 * len(mine)
    assert {key: mine[key] for key in kept} == {key: theirs[key] for key in kept}
    assert {node["name"] for node in told["cpu_nodes"]} <= {key for key, ep in mine.items() if ep != SHORT["cuda"]}
    assert len(copies(found)) == told["memcpy"]


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_models_are_described_as_the_cuda_provider_places_them(name: str, judge: Judge, tmp_path: Path) -> None:
    case, path = AWKWARD[name], tmp_path / "model.onnx"
    onnx.save(case.model, path)
    told = judge(path)
    assert {node["name"]: node["why"] for node in told["cpu_nodes"]} == case.cpu
    assert sorted(copy["op"] for copy in told["memcpy_at"]) == sorted(op for op, _ in case.memcpy)


@pytest.mark.parametrize("name", ["forgetting", "gqa keys"])
def test_attention_that_is_called_slow_is_what_no_fused_kernel_takes(
    name: str, judge: Judge, written: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The provider names the fused kernel that an attention node takes when it runs, and nothing for the unfused one.
    monkeypatch.setenv("ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO", "1")
    path, log = written(name, "float16"), tmp_path / "log"
    sizes = "batch=1,seq=1,capacity=32"
    filled = ("seq_length=1", "kv_length=5", "past_length=4", "max_length=5")
    judge(path, "disable", "--log", str(log), "--run", sizes, *(text for each in filled for text in ("--fill", each)))
    fused = set(
        re.findall(r"Node=(\S+) .*SdpaKernel=(?:FLASH|EFFICIENT|CUDNN)", log.read_text("utf-8", errors="replace"))
    )
    limits = check_provider(path, "cuda").limits
    slow = {node for limit in limits if limit.severity == "slow" for node in limit.nodes}
    root = onnx.load(path, load_external_data=False).graph
    at_root = {node.name for node in root.node if node.op_type in ("Attention", "GroupQueryAttention")}
    assert at_root
    assert at_root & slow == at_root - fused


def test_the_table_holds_exactly_the_kernels_of_the_release() -> None:
    from archc_exporters.onnx.placement.schemas import short_type
    from archc_exporters.onnx.placement.tables import RELEASE, load

    listed = json.loads(KERNELS.read_text("utf-8"))
    table = load(f"cuda_kernels-{RELEASE}.json")
    assert (listed["onnxruntime"], listed["provider"]) == (table["onnxruntime"], table["provider"])
    wanted = {
        (row["domain"], row["op"], *row["versions"], combination)
        for row in listed["kernels"]
        for combination in _combinations({key: map(short_type, types) for key, types in row["types"].items()})
    }
    found = {
        (domain, op, entry["from"], entry["to"], combination)
        for domain, ops in table["kernels"].items()
        for op, entries in ops.items()
        for entry in entries
        for types in entry["types"]
        for combination in _combinations({key: table["sets"][index].split() for key, index in types.items()})
    }
    assert len(wanted) > 3000
    assert found == wanted


def _combinations(types: dict[str, Any]) -> list[tuple[tuple[str, str], ...]]:
    from itertools import product

    keys = sorted(types)
    return [tuple(zip(keys, kinds, strict=True)) for kinds in product(*(sorted(types[key]) for key in keys))]


def test_where_a_cuda_provider_loads_the_session_is_asked(judge: Judge, written: Callable[..., Path]) -> None:
    path = written("kimi-linear", "float16")
    told = judge(path, "all")
    if not LIBRARIES.is_dir():
        pytest.skip("the stand-in libraries lie elsewhere")
    code = (
        "import json, sys; from pathlib import Path\n"
        "from archc_exporters.onnx.placement.check import check_provider\n"
        "json.dump(check_provider(Path(sys.argv[1]), 'cuda').to_json(), sys.stdout)"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARIES), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, env=environment
    )
    found = json.loads(done.stdout)
    assert found["source"].startswith("a session of onnxruntime")
    assert len(found["memcpy"]) == told["memcpy"]
    assert {node["name"]: node["reason"] for node in found["off"]} == {n["name"]: n["why"] for n in told["cpu_nodes"]}
    assert found["counts"]["cpu"] == len(told["cpu_nodes"])
