"""What ``archc compare`` prints and writes, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from archc.planning.comparison.compare import compare

Invoke = Callable[..., Result]
SPECS = ("deepseek-v3", "kimi-linear-48b-a3b", "bert-base-uncased")


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_compare_prints_models_side_by_side_at_each_length(invoke: Invoke):
    result = invoke("compare", *SPECS, "--at", "4k,1M")
    assert (result.exit_code, result.stderr) == (0, "")
    found = rows(result.stdout)
    assert ["cache", "a", "token", "70,272", "B", "8,064", "B", "*", "-"] in found
    assert ["cache,", "whole", "batch", "1,048,576", "68.625", "GiB", "7.915", "GiB", "*", "-"] in found
    assert "while windows fill" not in result.stdout
    assert "while windows fill" in invoke("compare", "gpt-oss-20b", "deepseek-v3").stdout


def test_compare_json_is_the_library_s(invoke: Invoke):
    options = ["--batch-size", 3, "--dtype", "fp8", "--kv-cache-dtype", "fp8", "--set", "norm.eps=1e-6"]
    result = invoke("compare", "gpt2", "tiny-llama", "--at", "1k,77", *options, "--json")
    expected = compare(
        ["gpt2", "tiny-llama"],
        at=(1024, 77),
        overrides=["norm.eps=1e-6"],
        batch_size=3,
        dtype="fp8",
        kv_cache_dtype="fp8",
    )
    assert json.loads(result.stdout)["rows"] == json.loads(json.dumps(expected.to_json()))["rows"]


def test_tables_are_written_in_the_form_that_the_ending_says(invoke: Invoke, tmp_path: Path):
    files = [tmp_path / f"out.{ending}" for ending in ("csv", "md", "json")]
    outputs = [word for file in files for word in ("-o", file)]
    result = invoke("compare", *SPECS, "--at", "4k", *outputs)
    assert (result.exit_code, result.stdout) == (0, "".join(f"wrote {file}\n" for file in files))
    found = compare(SPECS, at=[4096])
    table, page, data = (file.read_text() for file in files)
    assert table == found.to_csv()
    assert json.loads(data) == json.loads(json.dumps(found.to_json()))
    assert "| cache a token | 70,272 B | **8,064 B** | - |" in page
    assert {line.count("|") for line in page.splitlines()} == {5}
    assert sorted(tmp_path.iterdir()) == sorted(files)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_charts_are_written_as_well(invoke: Invoke, tmp_path: Path, ending: str):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"out.{ending}"
    result = invoke("compare", "gpt2", "tiny-llama", "--at", "1k,4k", "--plot", file)
    assert (result.exit_code, result.stdout) == (0, f"wrote {file}\n")
    start = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF-"}[ending]
    assert file.read_bytes().startswith(start)


def test_bad_input_ends_in_exit_code_2_and_writes_nothing(invoke: Invoke, tmp_path: Path, bad_spec: Path):
    for arguments in (
        ["gpt2", "--at", "4q"],
        ["gpt2", "-o", tmp_path / "out.xlsx"],
        ["gpt2", "-o", tmp_path / "no" / "out.csv"],
        ["gpt3", "gpt2", "-o", tmp_path / "out.csv"],
        [],
    ):
        assert invoke("compare", *arguments).exit_code == 2
    result = invoke("compare", bad_spec, "lama-3-8b", "-o", tmp_path / "out.csv")
    assert result.exit_code == 2
    assert "mixers.attn.num_heads" in result.stderr
    assert "Did you mean llama-3-8b?" in result.stderr
    assert not (tmp_path / "out.csv").exists()
