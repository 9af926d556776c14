"""What the commands print, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from archc._version import __version__
from archc.cli.export_text import folded
from archc.cli.table import aligned, ranges
from archc.estimation.estimate import estimate
from archc.spec.load import load_spec

Invoke = Callable[..., Result]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_module_runs_as_the_command_does(shell: Shell):
    done = shell("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"archc {__version__}")


def test_estimate_prints_bytes_and_gib_and_its_conventions(invoke: Invoke):
    result = invoke("estimate", "kimi-linear-48b-a3b", "--max-model-len", 131072)
    assert result.exit_code == 0
    for text in (
        "49,122,675,072",
        "3,484,453,248",
        "1,100,382,208 B",
        "1.025 GiB",
        "8,064",
        "kda + moe",
        "multiply-add",
    ):
        assert text in result.stdout
    assert result.stderr == ""


def test_estimate_json_is_the_estimate(invoke: Invoke):
    result = invoke("estimate", "tiny-gpt-oss", "--batch-size", 2, "--max-model-len", 77, "--dtype", "f32", "--json")
    assert json.loads(result.stdout) == estimate("tiny-gpt-oss", batch_size=2, max_model_len=77, dtype="f32").to_json()


def test_set_changes_a_value_of_the_spec(invoke: Invoke):
    result = invoke("estimate", "tiny-llama", "--set", "stack.num_layers=7", "--json")
    assert json.loads(result.stdout)["layers"][0]["layers"] == 7


def test_an_unknown_dtype_is_a_usage_error(invoke: Invoke):
    result = invoke("estimate", "tiny-llama", "--dtype", "bf17")
    assert result.exit_code == 2
    assert "bf17" in result.stderr
    assert "bfloat16" in result.stderr


@pytest.mark.parametrize("command", ["estimate", "show", "validate"])
def test_a_bad_spec_gives_all_its_problems_with_lines_and_exit_code_2(shell: Shell, bad_spec: Path, command: str):
    done = shell(command, bad_spec)
    assert done.returncode == 2
    first, *lines = done.stderr.splitlines()
    assert first == f"archc: {len(lines)} problems in {bad_spec}"
    assert any(line.startswith(f"  {bad_spec}:8:32: mixers.attn.num_heads: ") and "'0x'" in line for line in lines)
    assert any("num_kv_head: unknown key" in line and "Did you mean num_kv_heads?" in line for line in lines)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["estimate", "show", "validate"])
def test_problems_are_data_with_json(invoke: Invoke, bad_spec: Path, command: str):
    result = invoke(command, bad_spec, "--json")
    assert result.exit_code == 2
    problems = json.loads(result.stdout)["problems"]
    assert {(problem["line"], problem["path"]) for problem in problems} >= {(8, "mixers.attn.num_heads")}


@pytest.mark.parametrize("spec", ["no-such-spec", "no/such/file.yaml", "", "."])
def test_a_spec_that_is_not_there_is_an_error_of_the_user(shell: Shell, spec: str):
    done = shell("estimate", spec)
    assert done.returncode == 2
    assert done.stderr.startswith("archc: ")
    assert "Traceback" not in done.stderr


def test_validate_reads_patterns_and_judges_every_file(invoke: Invoke, bad_spec: Path):
    good = bad_spec.with_name("good.yaml")
    good.write_text(bad_spec.read_text().replace("0x", "4").replace("num_kv_head:", "num_kv_heads:"))
    result = invoke("validate", bad_spec.parent / "*.yaml")
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [f"{good}: ok"]
    assert f"in {bad_spec}" in result.stderr
    assert invoke("validate", good, "tiny-llama").exit_code == 0
    assert invoke("validate", bad_spec.parent / "*.yml").exit_code == 2


def test_warnings_are_printed_and_pass(invoke: Invoke, bad_spec: Path):
    odd = bad_spec.with_name("odd.yaml")
    text = bad_spec.read_text().replace("0x", "4").replace("num_kv_head:", "num_kv_heads:")
    odd.write_text(text.replace("ffns:\n", "ffns:\n  spare: {kind: swiglu, intermediate_size: 1}\n"))
    result = invoke("validate", odd)
    assert (result.exit_code, result.stdout) == (0, f"{odd}: ok\n")
    assert "warning: " in result.stderr
    assert "spare" in result.stderr
    assert json.loads(invoke("validate", odd, "--json").stdout)["problems"][0]["severity"] == "warning"


def test_show_counts_layers_from_0_and_folds_runs(invoke: Invoke):
    lines = invoke("show", "kimi-linear-48b-a3b").stdout.splitlines()
    rows = [line.split() for line in lines]
    assert ["0", "1", "kda", "dense", "(swiglu)"] in rows
    assert ["1-2", "2", "kda", "moe"] in rows
    assert ["26", "1", "mla", "moe"] in rows
    layers = json.loads(invoke("show", "kimi-linear-48b-a3b", "--json").stdout)["layers"]
    assert [row["layer"] for row in layers if row["mixer"] == "mla"] == [3, 7, 11, 15, 19, 23, 26]


def test_a_resolved_spec_loads_to_the_same_costs(invoke: Invoke, tmp_path: Path):
    text = invoke("show", "gpt-oss-20b", "--resolved").stdout
    assert "default" in text
    assert "gpt-oss-120b.yaml:" in text
    path = tmp_path / "resolved.yaml"
    path.write_text(text)
    assert load_spec(path) == load_spec("gpt-oss-20b")


def test_the_lockfile_is_the_same_every_time(invoke: Invoke):
    first, second = (invoke("show", "tiny-kimi-linear", "--lock").stdout for _ in range(2))
    assert first == second
    assert json.loads(first)["name"] == "tiny-kimi-linear"


def test_plugins_are_listed_with_the_package_that_brings_them(invoke: Invoke):
    rows = json.loads(invoke("plugins", "--family", "mixer", "--json").stdout)["plugins"]
    assert {"family": "mixer", "name": "kda"}.items() <= next(row for row in rows if row["name"] == "kda").items()
    assert all(row["package"] == "archc-compiler" for row in rows)
    assert "arXiv" in invoke("plugins", "--family", "mixer", "--verbose").stdout
    assert invoke("plugins", "--family", "mixers").exit_code == 2


def test_the_schema_is_written_whole(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "schema.json"
    assert invoke("schema", "-o", path).exit_code == 0
    assert json.loads(path.read_text()) == json.loads(invoke("schema").stdout)
    assert [file.name for file in tmp_path.iterdir()] == ["schema.json"]


def test_a_folder_that_is_not_there_is_an_error_of_the_user(shell: Shell, tmp_path: Path):
    done = shell("schema", "-o", tmp_path / "none" / "schema.json")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_reader_that_closes_the_pipe_early_is_no_error():
    code = f"{sys.executable} -m archc show deepseek-v3 --lock | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_columns_are_aligned_and_lines_end_without_spaces():
    assert aligned([("a", "1"), ("bcd", "23")], left=1) == ["a     1", "bcd  23"]
    assert aligned([("a", "b"), ("cc", "")], left=2) == ["a   b", "cc"]
    assert ranges([0, 1, 2, 4, 6, 7]) == "0-2,4,6-7"


def test_caches_of_equal_layers_are_one_line():
    names = [f"past_key_values.{layer}.{end}" for layer in (0, 1, 3) for end in ("key", "value")]
    caches = [{"name": name, "dtype": "float16", "shape": ["batch", 2, "capacity", 8]} for name in names]
    assert [cache["name"] for cache in folded(caches)] == [
        "past_key_values.{0-1,3}.key",
        "past_key_values.{0-1,3}.value",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("columns", [40, 200])
def test_a_terminal_of_any_width_shows_every_number_whole(columns: int):
    code = f"import pty; pty.spawn([{sys.executable!r}, '-m', 'archc', 'estimate', 'gpt-oss-20b'])"
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    for text in ("20,914,757,184", "400.18 T", "24,576", "sliding + moe"):
        assert text in done.stdout
    assert "…" not in done.stdout


@pytest.mark.parametrize("option", ["--max-model-len", "--batch-size", "--block-size"])
@pytest.mark.parametrize("value", ["0", "-1", "x", "9" * 5000])
def test_a_count_that_is_none_is_a_usage_error(invoke: Invoke, option: str, value: str):
    assert invoke("estimate", "tiny-llama", option, value).exit_code == 2
