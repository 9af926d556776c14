"""Every written file is run in a process that may die of it; what can't be run has a twin that can."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archc.errors import ArchcError, CheckFailedError
from archc_exporters.onnx import check
from archc_exporters.onnx.check import Subject, held_bytes, plan_trial, twin_target
from archc_exporters.onnx.check_child import Call
from archc_exporters.onnx.export import export
from archc_exporters.onnx.lower import lower_graph
from archc_exporters.onnx.memory import free_memory_bytes
from archc_exporters.onnx.report import count_nodes
from archc_exporters.onnx.sources import NoWeights, RandomWeights
from archc_exporters.onnx.target import Quantization, Target
from archc_exporters.onnx.trial import try_file
from archc_exporters.onnx.weights import DTYPES
from tests.onnx.conftest import graph_of

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

TALK = {"few tokens": [Call(ids=[[1, 2, 3]], valid=[3], columns=3), Call(ids=[[4]], valid=[1], columns=1)]}
SIGNALS = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the child in /proc")


def children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


def kill_the_child(number: int) -> Callable[[str, int, int], None]:
    """A progress function that ends the checking process as soon as it says something, and no child that others have left."""
    others = children()

    def progress(name: str, done: int, total: int) -> None:
        if name.startswith("(check:"):
            for pid in set(children()).difference(others):
                os.kill(pid, number)

    return progress


def test_a_file_runs_in_a_lean_process_that_says_what_it_took(exported: Callable[..., Any], tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    model = exported("llama", "float32").folder / "model.onnx"
    cost = try_file(model, TALK, capacity=8, limit_seconds=60, keep=tmp_path, progress=lambda *line: heard.append(line))
    assert heard == [
        ("(check: loading)", 0, 2),
        ("(check: few tokens)", 0, 2),
        ("(check: few tokens)", 1, 2),
        ("(check: run)", 2, 2),
    ]
    assert np.load(tmp_path / "few tokens.0.npy").shape == (1, 3, 61)
    assert np.load(tmp_path / "few tokens.1.npy").shape == (1, 1, 61)
    assert cost.seconds > 0
    assert cost.peak_bytes is None or 10 << 20 < cost.peak_bytes < 200 << 20


def test_the_process_imports_neither_torch_nor_onnx() -> None:
    code = (
        "import sys, archc_exporters.onnx.check_child\n"
        "print(*[m for m in ('torch', 'onnx', 'onnx_ir', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@SIGNALS
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_dies_is_an_error_and_the_earlier_export_stays(
    exported: Callable[..., Any], tmp_path: Path, number: signal.Signals
) -> None:
    graph = exported("llama", "float32").graph
    export(graph, tmp_path, dtype="float32", check=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CheckFailedError, match=f"ended by {number.name}.*while (loading|batch)"):
        export(graph, tmp_path, dtype="float32", seed=1, progress=kill_the_child(number))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@SIGNALS
def test_a_process_that_takes_too_long_is_ended(exported: Callable[..., Any]) -> None:
    others = children()
    with pytest.raises(CheckFailedError, match=r"did not finish within 0\.01 s \(it was starting\)"):
        try_file(exported("llama", "float32").folder / "model.onnx", TALK, capacity=8, limit_seconds=0.01)
    assert set(children()) <= set(others)


def test_a_process_that_can_not_read_its_job_says_so(exported: Callable[..., Any]) -> None:
    model, broken = exported("llama", "float32").folder / "model.onnx", {"no calls": 5}
    with pytest.raises(CheckFailedError, match=r"(?s)ended with code 1 while starting: Traceback.*TypeError: .*'int'"):
        try_file(model, broken, capacity=8, limit_seconds=60)  # type: ignore[arg-type]


def test_outputs_of_another_shape_are_refused(exported: Callable[..., Any]) -> None:
    calls = {"few": [Call(ids=[[1, 2, 3]], valid=[3], columns=1)]}
    with pytest.raises(CheckFailedError, match=r"few: \(1, 3\) tokens give \(1, 3, 61\), not \(1, 1, \.\.\.\)"):
        try_file(exported("llama", "float32").folder / "model.onnx", calls, capacity=8, limit_seconds=60)


def test_the_report_keeps_writing_and_checking_apart(exported: Callable[..., Any]) -> None:
    report = exported("llama", "float32").report
    assert report.seconds_writing > 0
    assert report.seconds_checking > 0
    assert report.check_peak_bytes is None or report.check_peak_bytes > 10 << 20
    assert [line.partition(":")[0] for line in report.checks] == ["structure", "run"]


def test_nothing_runs_without_a_check(exported: Callable[..., Any], tmp_path: Path) -> None:
    report = export(exported("llama", "float32").graph, tmp_path, dtype="float32", check=False)
    assert [line.partition(":")[0] for line in report.checks] == ["structure"]
    assert report.check_peak_bytes is None


def lines_about(report: Any) -> list[str]:
    return [line for line in report.checks if not line.startswith("structure")]


def test_a_file_without_weights_is_not_run_but_its_twin_is(exported: Callable[..., Any], tmp_path: Path) -> None:
    report = export(exported("kimi-linear", "float16").graph, tmp_path, no_weights=True)
    not_run, twin = lines_about(report)
    assert not_run == "not run: the weights are not in the file"
    assert twin.startswith("float32 twin, 3 of 3 layers: batch 1, prefill 4, chunk 2, decode 1; batch 2")
    assert "their bytes are absent" in report.checks[0]
    assert not [path for path in tmp_path.iterdir() if path.name == "model.onnx.data" or path.is_dir()]


def test_bfloat16_is_not_run_but_its_twin_of_every_distinct_layer_is(tmp_path: Path) -> None:
    report = export(graph_of("llama", "stack.num_layers=7"), tmp_path, dtype="bfloat16")
    not_run, twin = lines_about(report)
    assert not_run == "not run: onnxruntime's CPU has no bfloat16"
    assert twin.startswith("float32 twin, 2 of 7 layers: batch 1")


def test_weights_over_half_of_the_free_memory_are_not_run(
    exported: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of("llama", "stack.num_layers=7")
    model, _ = lower_graph(graph, target=Target(), weights=NoWeights(), max_model_len=40)
    needed = held_bytes(model)
    monkeypatch.setattr(check, "free_memory_bytes", lambda: 2 * needed - 1)
    not_run, twin = lines_about(export(graph, tmp_path))
    assert "more than half of the free memory" in not_run
    assert twin.startswith("float32 twin, 2 of 7 layers")
    monkeypatch.setattr(check, "free_memory_bytes", lambda: 1000)
    (line,) = lines_about(export(graph, tmp_path))
    assert "its float32 twin of 2 of 7 layers needs" in line
    monkeypatch.setattr(check, "free_memory_bytes", lambda: 2 * needed)
    assert lines_about(export(graph, tmp_path))[0].startswith("run: batch 1")


def test_integer_weights_are_counted_as_they_are_and_floats_as_float32() -> None:
    graph = graph_of("llama", "embedding.hidden_size=128", "ffns.mlp.intermediate_size=256")
    held: dict[str, int] = {}
    for name, target in {
        "float16": Target(provider="cpu"),
        "float32": Target(provider="cpu", dtype="float32"),
        "int4": Target(provider="cpu", dtype="float32", quant=Quantization(bits=4)),
    }.items():
        held[name] = held_bytes(lower_graph(graph, target=target, weights=NoWeights(), max_model_len=40)[0])
    assert held["float16"] == held["float32"]
    assert held["int4"] < 0.6 * held["float32"]


def test_what_can_not_be_judged_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "free_memory_bytes", lambda: 1000)
    with pytest.raises(ArchcError, match=r"llama can't be compared with torch here: the weights take .* KiB in memory"):
        export(graph_of("llama"), tmp_path / "out", judge=lambda file: [])
    assert not (tmp_path / "out").exists()


def test_a_large_twin_is_run_only_where_somebody_asked_for_a_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("llama")
    subject = Subject(
        graph=graph,
        target=Target(dtype="bfloat16"),
        weights=RandomWeights(0, DTYPES["bfloat16"]),
        max_model_len=8,
    )
    monkeypatch.setattr(check, "_TWIN_LIMIT_BYTES", 1000)
    model, _ = lower_graph(graph, target=subject.target, weights=subject.weights, max_model_len=8)
    assert plan_trial(subject, model, judged=False).twin is None
    twin = plan_trial(subject, model, judged=True).twin
    assert twin is not None
    assert (twin.target.dtype, twin.target.provider) == ("float32", "cuda")


@pytest.mark.parametrize(("dtype", "provider"), [("bfloat16", "cuda"), ("float16", "cuda"), ("float16", "cpu")])
@pytest.mark.parametrize("name", ["llama", "gpt-oss", "kimi-linear", "qwen3-next", "gqa keys"])
def test_a_twin_has_the_nodes_of_its_file_but_for_casts(name: str, dtype: str, provider: Any) -> None:
    graph = graph_of(name)
    target = Target(dtype=dtype, provider=provider)
    found: list[dict[str, int]] = []
    for each in (target, twin_target(target)):
        model, _ = lower_graph(graph, target=each, weights=NoWeights(), max_model_len=40)
        found.append({op: count for op, count in count_nodes(model).items() if op != "Cast"})
    assert found[0] == found[1]
    assert ("com.microsoft.GroupQueryAttention" in found[1]) is (name != "kimi-linear")


MEMINFO = "MemTotal: 8000 kB\nMemFree: 10 kB\nMemAvailable:    4000 kB\n"


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        ("", {}, 4000 * 1024),
        ("0::/a/b\n", {"a/memory.max": "max", "a/memory.current": "5"}, 4000 * 1024),
        ("0::/a/b\n", {"a/memory.max": "90000", "a/memory.current": "40000"}, 50000),
        (
            "0::/a\n",
            {"a/memory.max": "90000", "a/memory.current": "40000", "a/memory.stat": "anon 7\ninactive_file 1000\n"},
            51000,
        ),
        ("0::/a\n", {"memory.max": "7000", "memory.current": "9000"}, 0),
        (
            "7:blkio:/x\n4:memory:/c\n",
            {"memory/c/memory.limit_in_bytes": "80000", "memory/c/memory.usage_in_bytes": "20000"},
            60000,
        ),
    ],
    ids=["no group", "no limit", "limit above", "page cache is given back", "over the limit", "version 1"],
)
def test_free_memory_is_the_least_of_machine_and_container(
    tmp_path: Path, groups: str, files: dict[str, str], left: int
) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    assert free_memory_bytes(proc, mount) == left


def test_free_memory_is_known_on_this_machine_and_guessed_elsewhere(tmp_path: Path) -> None:
    assert free_memory_bytes() > 1 << 20
    assert free_memory_bytes(tmp_path, tmp_path) > 1 << 20


def test_a_job_is_plain_data(tmp_path: Path, exported: Callable[..., Any]) -> None:
    """The child's own door: a file of JSON in, lines of JSON out."""
    model = exported("llama", "float32").folder / "model.onnx"
    job = {"model": str(model), "capacity": 8, "threads": 1, "keep": "", "caches": True, "talks": TALK}
    (tmp_path / "job.json").write_text(json.dumps(job))
    command: Sequence[str] = (sys.executable, "-m", "archc_exporters.onnx.check_child", str(tmp_path / "job.json"))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    last = json.loads(done.stdout.splitlines()[-1])
    assert list(last) == ["peak_bytes"]
