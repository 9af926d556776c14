"""What ``archc complexity`` prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from archc.estimation.complexity import complexity
from archc.spec.load import load_spec

Invoke = Callable[..., Result]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_complexity_prints_growth_crossings_and_flops_a_byte(invoke: Invoke):
    result = invoke("complexity", "kimi-linear-48b-a3b", "--at", "4k,1M")
    assert (result.exit_code, result.stderr) == (0, "")
    found = rows(result.stdout)
    assert ["mixer", "kda", "20", "O(n)", "O(1)", "O(1)"] in found
    assert ["ffn", "moe", "26", "O(n)", "O(1)", "-"] in found
    assert ["mixer", "mla", "7", "O(n^2)", "O(n)", "O(n)"] in found
    assert ["model", "whole", "27", "O(n^2)", "O(n)", "O(n)"] in found
    assert ["kda", "mla", "2,464", "344", "1,885"] in found
    assert "one layer at 4,096 tokens" in result.stdout
    assert "one layer at 1,048,576 tokens" in result.stdout
    assert "131,072" not in result.stdout
    assert "scores stay on the chip" in result.stdout


def test_a_window_is_told_in_tokens_beside_its_growth(invoke: Invoke):
    found = rows(invoke("complexity", "gpt-oss-20b").stdout)
    assert ["mixer", "sliding", "12", "O(n·w)", "O(w)", "O(w)", "w", "=", "128"] in found


def test_complexity_json_is_the_library_s(invoke: Invoke):
    result = invoke(
        "complexity", "tiny-llama", "--at", "1k,77", "--batch-size", 5, "--set", "stack.num_layers=7", "--json"
    )
    found = complexity(load_spec("tiny-llama", ["stack.num_layers=7"]), lengths=[1024, 77], batch_size=5)
    assert json.loads(result.stdout) == found.to_json()
    assert {kind.layers for kind in found.kinds} == {7}


@pytest.mark.parametrize("lengths", ["", "4q", "4k,", "-3", "0", "4.0001k", "9999999999999M", "1e-3"])
def test_what_is_no_length_is_an_error_of_the_command_line(invoke: Invoke, lengths: str):
    result = invoke("complexity", "tiny-llama", f"--at={lengths}")
    assert result.exit_code == 2
    assert "--at" in result.stderr


def test_a_bad_spec_gives_its_problems_and_exit_code_2(invoke: Invoke, bad_spec: Path):
    result = invoke("complexity", bad_spec)
    assert result.exit_code == 2
    assert "mixers.attn.num_heads" in result.stderr
    data = json.loads(invoke("complexity", bad_spec, "--json").stdout)
    assert {problem["path"] for problem in data["problems"]} >= {"mixers.attn.num_heads"}
    assert invoke("complexity", "no-such-spec").exit_code == 2
