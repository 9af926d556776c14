"""What ``archc diff`` prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from archc.planning.comparison.diff import diff

Invoke = Callable[..., Result]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_diff_prints_keys_layers_ops_and_every_cost_with_its_reason(invoke: Invoke):
    result = invoke("diff", "deepseek-v3", "kimi-linear-48b-a3b", "--at", "128k")
    assert (result.exit_code, result.stderr) == (0, "")
    found = rows(result.stdout)
    assert "batch 1, length 131,072 tokens" in result.stdout
    assert ["embedding.hidden_size", "7168", "2304", "-453.08", "G", "0", "-45.19", "G"] in found
    assert ["stack", "kda", "+", "moe", "-", "19"] in found
    assert ["stack", "27-60", "mla", "+", "moe", "-"] in found
    assert "layers 3,7,11,15,19,23,26: mixer.attention: num_heads is 32, was 128" in result.stdout
    assert ["cache", "a", "token", "70,272", "B", "8,064", "B", "-62,208", "B", "0.1148"] in found
    assert ["mixer.mla", "70,272", "B", "8,064", "B", "-62,208", "B", "100.0%", "61", "->", "7", "layers"] in found
    assert "and 26 more; --json has all" in result.stdout
    assert "sum to that of the whole, counts exactly" in " ".join(result.stdout.split())


def test_one_spec_is_compared_with_itself_changed(invoke: Invoke):
    result = invoke("diff", "llama-3-8b", "--set-b", "mixers.attn.num_kv_heads=4", "--at", "128k")
    found = rows(result.stdout)
    assert ["B", "llama-3-8b,", "mixers.attn.num_kv_heads=4"] in found
    assert next(row for row in found if row[:1] == ["cache,"])[:10] == [
        "cache,",
        "whole",
        "batch",
        "16.000",
        "GiB",
        "8.000",
        "GiB",
        "-8.000",
        "GiB",
        "0.5",
    ]
    assert "mixer.attn" in result.stdout
    # Without anything to compare there is no answer.
    nothing = invoke("diff", "llama-3-8b")
    assert nothing.exit_code == 2
    assert "--set-b" in nothing.stderr


def test_exit_codes_are_those_of_git_diff(invoke: Invoke):
    assert invoke("diff", "gpt2", "gpt2-xl").exit_code == 0
    assert invoke("diff", "gpt2", "gpt2-xl", "--exit-code").exit_code == 1
    same = invoke("diff", "gpt2", "gpt2", "--exit-code")
    assert (same.exit_code, "no difference" in same.stdout) == (0, True)


def test_diff_json_is_the_library_s(invoke: Invoke):
    arguments = ["--set", "stack.num_layers=6", "--set-a", "norm.eps=1e-6", "--at", "1k", "--batch-size", 5]
    result = invoke(
        "diff", "tiny-llama", "tiny-gpt-oss", *arguments, "--dtype", "f32", "--kv-cache-dtype", "fp8", "--json"
    )
    expected = diff(
        "tiny-llama",
        "tiny-gpt-oss",
        overrides=["stack.num_layers=6"],
        overrides_a=["norm.eps=1e-6"],
        length=1024,
        batch_size=5,
        dtype="float32",
        kv_cache_dtype="float8_e4m3fn",
    )
    assert json.loads(result.stdout) == json.loads(json.dumps(expected.to_json()))


def test_problems_of_both_specs_end_in_exit_code_2(invoke: Invoke, bad_spec: Path):
    result = invoke("diff", bad_spec, "lama-3-8b")
    assert result.exit_code == 2
    assert "mixers.attn.num_heads" in result.stderr
    assert "Did you mean llama-3-8b?" in result.stderr
    assert invoke("diff", "gpt2", "gpt2", "--at", "4q").exit_code == 2
    assert invoke("diff", "gpt2", "--set-b", "norm.epsilon=1").exit_code == 2
