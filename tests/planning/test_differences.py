"""Differences between two specs: they sum, they are those of two estimates, and their reasons hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archc.errors import ArchcError, SpecError
from archc.estimation.estimate import estimate
from archc.planning.comparison.diff import Diff, diff
from archc.spec.load import load_spec
from archc.spec.shipped import shipped_specs

PAIRS = [
    ("deepseek-v3", "kimi-linear-48b-a3b"),
    ("llama-3-8b", "llama-3-70b"),
    ("gpt-oss-20b", "gpt-oss-120b"),
    ("deepseek-v3", "deepseek-v4-flash"),
    ("gemma-3-4b", "demo-yoco"),
    ("mamba2-2.7b", "jamba-v0.1"),
    ("bert-base-uncased", "roberta-base"),
    ("t5-base", "transformer-base-2017"),
]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_parts_sum_exactly_to_every_difference_and_the_totals_are_the_estimates(a: str, b: str):
    found = diff(a, b, length=4096, batch_size=3)
    one, two = (estimate(name, max_model_len=4096, batch_size=3) for name in (a, b))
    assert found.quantities
    for change in found.quantities.values():
        assert sum(part.difference for part in change.by_part) == change.difference, change.name
        shares = [change.share(part) for part in change.by_part]
        assert [abs(part.difference) for part in change.by_part] == sorted(
            (abs(part.difference) for part in change.by_part), reverse=True
        )
        if change.difference:
            assert sum(share for share in shares if share is not None) == pytest.approx(1)
    assert (found.quantities["parameters"].a, found.quantities["parameters"].b) == (
        one.parameters.total,
        two.parameters.total,
    )
    assert found.quantities["active_parameters"].difference == two.parameters.active - one.parameters.active
    assert found.quantities["weight_bytes"].difference == two.weights.bytes - one.weights.bytes
    if "decode" in one.flops.numbers and "decode" in two.flops.numbers:
        assert found.quantities["cache_bytes"].difference == two.cache.used_bytes - one.cache.used_bytes
        assert found.quantities["cache_bytes_per_token"].difference == (
            two.cache.bytes_per_token - one.cache.bytes_per_token
        )
    for step in one.flops.numbers:
        if not step.endswith("_dense") and step in two.flops.numbers:
            change = found.quantities[f"{step}_flops"]
            assert change.difference == two.flops.numbers[step] - one.flops.numbers[step]


def test_half_the_kv_heads_of_llama_3_8b_halve_its_cache_and_the_key_is_the_reason():
    found = diff("llama-3-8b", overrides_b=["mixers.attn.num_kv_heads=4"], length=1 << 17)
    # 2 x 32 layers x 4096 x 4 heads x 128 fewer weights of keys and values.
    weights = 2 * 32 * 4096 * 4 * 128
    parameters = found.quantities["parameters"]
    assert parameters.difference == -weights
    assert [(part.part, part.difference) for part in parameters.by_part] == [("mixer.attn", -weights)]
    assert parameters.by_part[0].keys == {"mixers.attn.num_kv_heads": -weights}
    cache = found.quantities["cache_bytes"]
    assert (cache.a, cache.b, cache.ratio) == (16 << 30, 8 << 30, 0.5)
    assert found.quantities["decode_flops"].difference == -2 * weights
    assert found.quantities["train_step_flops"].difference == -6 * weights * (1 << 17)
    assert [(change.path, change.a, change.b) for change in found.keys] == [("mixers.attn.num_kv_heads", 8, 4)]
    assert found.layers == []
    assert "layers 0-31: mixer.k_proj: width is 512, was 1024" in found.graph
    assert all(found.rest(name) == 0 for name in found.quantities)


def test_what_a_key_does_alone_is_the_difference_of_two_estimates_with_and_without_it():
    found = diff("deepseek-v3", "kimi-linear-48b-a3b", length=4096)
    alone = {each.label: each for each in found.alone}
    for key, value in {
        "embedding.hidden_size": 2304,
        "mixers.mla.num_heads": 32,
        "ffns.moe.intermediate_size": 1024,
    }.items():
        one, two = (
            estimate(load_spec("deepseek-v3", overrides), max_model_len=4096) for overrides in ((), [f"{key}={value}"])
        )
        assert alone[key].differences["parameters"] == two.parameters.total - one.parameters.total
        assert alone[key].differences["decode_flops"] == two.flops.numbers["decode"] - one.flops.numbers["decode"]
    # The schedule is tried with the mixer that it needs.
    assert alone["stack layers"].paths == ("stack.num_layers", "stack.mixer", "stack.ffn")
    kda = next(part for part in found.quantities["parameters"].by_part if part.part == "mixer.kda")
    assert (kda.layers_a, kda.layers_b) == (0, 20)
    assert kda.keys["stack layers"] > 0
    assert alone["ffns.moe.router.n_group"].refused
    for name, change in found.quantities.items():
        assert found.rest(name) == change.difference - sum(each.differences.get(name, 0) for each in found.alone)


def test_layers_that_differ_are_told_in_runs_with_names_and_kinds():
    found = diff("deepseek-v3", "kimi-linear-48b-a3b")
    told = {(change.section, change.a, change.b): change.layers for change in found.layers}
    assert told["stack", "mla + dense (swiglu)", "kda + moe"] == (1, 2)
    assert told["stack", "mla + moe", None] == tuple(range(27, 61))
    assert told["mtp", "mla + moe", None] == (0,)
    assert found.layer_counts[1] == {"stack": {"kda + dense (swiglu)": 1, "kda + moe": 19, "mla + moe": 7}}


def test_kinds_that_change_are_one_change_and_what_one_lacks_says_so():
    found = diff("tiny-llama", overrides_b=["norm={kind: layer_norm, eps: 1e-5}", "stack.num_layers=3"])
    keys = {change.path: change for change in found.keys}
    assert set(keys) == {"norm", "stack.num_layers"}
    assert (keys["norm"].a["kind"], keys["norm"].b["kind"]) == ("rms_norm", "layer_norm")
    new = diff("tiny-llama", overrides_b=["mixers.other={kind: gqa, num_heads: 2, num_kv_heads: 2, head_dim: 8}"])
    assert [(change.path, change.in_a, change.in_b) for change in new.keys] == [("mixers.other", False, True)]
    assert new.is_different
    assert all(change.difference == 0 for change in new.quantities.values())


def test_a_spec_does_not_differ_from_itself_nor_by_its_name(tmp_path: Path):
    copy = tmp_path / "copy.yaml"
    copy.write_text(f"extends: {shipped_specs()['gpt2']}\nname: another\ndescription: the same\n")
    for other in ("gpt2", copy):
        found = diff("gpt2", other)
        assert not found.is_different
        assert (found.keys, found.layers, found.graph, found.alone) == ([], [], [], [])
        assert {change.difference for change in found.quantities.values()} == {0}


def test_models_that_keep_nothing_have_no_cache_to_compare():
    found = diff("bert-base-uncased", "gpt2", length=512)
    assert found.quantities["cache_bytes"].a is None
    assert found.quantities["cache_bytes"].difference is None
    assert found.quantities["decode_flops"].by_part == []
    assert found.quantities["forward_flops"].b is None
    assert found.rest("cache_bytes") is None


def test_the_default_length_is_one_that_both_are_made_for():
    assert diff("llama-3-8b", "gpt2").length == 1024
    assert diff("tiny-llama", "tiny-llama", length=77).length == 77


def test_json_is_plain_data_with_the_numbers_of_the_objects():
    found = diff("gpt-oss-20b", "gpt-oss-120b", length=1 << 17)
    data = json.loads(json.dumps(found.to_json()))
    assert data["quantities"]["cache_bytes"]["difference"] == found.quantities["cache_bytes"].difference
    assert data["quantities"]["cache_bytes"]["by_part"][0]["share"] == pytest.approx(1, abs=0.01)
    assert data["is_different"] is True
    assert data["options"]["length"] == 1 << 17
    assert {each["label"] for each in data["keys_alone"]} == {"ffns.moe.num_experts", "stack layers"}


def test_problems_of_both_specs_are_told_at_once():
    with pytest.raises(SpecError) as caught:
        diff("gpt3", "lama-3-8b")
    assert [problem.file for problem in caught.value.problems] == ["gpt3", "lama-3-8b"]
    with pytest.raises(ArchcError, match="max_model_len should be at least 1"):
        diff("gpt2", "gpt2", length=-1)


def test_labels_tell_the_two_apart(tmp_path: Path):
    assert diff("gpt2", overrides_b=["norm.eps=1e-6"]).b == "gpt2, norm.eps=1e-6"
    copy = tmp_path / "copy.yaml"
    copy.write_text(f"extends: {shipped_specs()['gpt2']}\nname: gpt2\n")
    found: Diff = diff("gpt2", copy)
    assert (found.a, found.b) == ("gpt2", str(copy))


@pytest.mark.parametrize("gpus", [None, 8])
def test_times_differ_by_the_sum_of_their_parts_with_communication_and_optimizer_among_them(gpus: int | None):
    found = diff("deepseek-v3", "kimi-linear-48b-a3b", length=4096, gpu="h200", gpus=gpus)
    for name in ("prefill_s", "decode_s", "train_step_s"):
        change = found.quantities[name]
        assert change.unit == "s"
        assert sum(part.difference for part in change.by_part) == pytest.approx(change.difference, rel=1e-9)
        parts = {part.part for part in change.by_part}
        assert ("communication" in parts) == (gpus is not None)
        assert ("optimizer" in parts) == (name == "train_step_s")
    assert "decode_s" not in diff("gpt2", "gpt2-xl").quantities


EXPLAINED = {
    "parameters": "parameters.total",
    "active_parameters": "parameters.active",
    "weight_bytes": "weights.bytes",
    "cache_bytes_per_token": "cache.bytes_per_token",
    "cache_bytes": "cache.used_bytes",
    "prefill_flops": "flops.prefill",
    "decode_flops": "flops.decode",
    "train_step_flops": "flops.train_step",
}


def test_the_parts_are_the_sums_of_the_tensors_and_ops_that_explain_lists():
    found = diff("deepseek-v3", "kimi-linear-48b-a3b", length=4096)
    one, two = (estimate(name, max_model_len=4096) for name in ("deepseek-v3", "kimi-linear-48b-a3b"))
    for name, explained in EXPLAINED.items():
        before, after = (side.explain(explained).by_part() for side in (one, two))
        expected = {part: after.get(part, 0) - before.get(part, 0) for part in {*before, *after}}
        assert {part.part: part.difference for part in found.quantities[name].by_part} == {
            part: number for part, number in expected.items() if number
        }
