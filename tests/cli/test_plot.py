"""What ``archc plot`` writes, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from archc.plotting.plot import plot

Invoke = Callable[..., Result]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plot_writes_the_picture_of_the_library(invoke: Invoke, tmp_path: Path, ending: str):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"out.{ending}"
    result = invoke("plot", "gpt2", "tiny-llama", "--what", "cache", "--what", "flops", "--at", "1k,8k", "-o", file)
    assert (result.exit_code, result.stdout) == (0, f"wrote {file}\n")
    assert file.read_bytes() == plot(["gpt2", "tiny-llama"], what=["cache", "flops"], at=[1024, 8192]).picture(
        f".{ending}"
    )
    assert list(tmp_path.iterdir()) == [file]


def test_plot_json_are_the_numbers_of_the_picture(invoke: Invoke):
    options = ["--batch-size", 3, "--kv-cache-dtype", "fp8", "--set", "stack.num_layers=6"]
    result = invoke("plot", "tiny-llama", "--at", "1k,2k", *options, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    data = json.loads(result.stdout)
    assert data.pop("output") is None
    expected = plot(
        "tiny-llama", at=[1024, 2048], batch_size=3, kv_cache_dtype="float8_e4m3fn", overrides=["stack.num_layers=6"]
    )
    assert data == json.loads(json.dumps(expected.to_json()))


def test_bad_input_ends_in_exit_code_2_and_writes_nothing(invoke: Invoke, tmp_path: Path):
    for arguments in (
        ["gpt2"],
        ["gpt2", "-o", tmp_path / "out.gif"],
        ["gpt2", "-o", tmp_path / "no" / "out.png"],
        ["gpt3", "-o", tmp_path / "out.png"],
        ["gpt2", "--what", "cahce", "-o", tmp_path / "out.png"],
        ["gpt2", "--at", "0", "-o", tmp_path / "out.png"],
    ):
        result = invoke("plot", *arguments)
        assert result.exit_code == 2
        assert result.stderr
    assert list(tmp_path.iterdir()) == []
