"""A fit is the best of all values, tells what it is, and says what stands against one that can't be."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import archc
from archc.errors import ArchcError, SpecError
from archc.estimation.estimate import estimate
from archc.planning.hardware import find_device
from archc.planning.search import fit_search
from archc.planning.search.fit import NoFitError, fit
from archc.planning.search.fit_keys import free_keys
from archc.spec.load import load_spec, loads_spec, read_tree

LLAMA = "llama-3-8b"
KIMI = "kimi-linear-48b-a3b"


def overridden(spec: str, values: dict[str, Any], *more: str) -> Any:
    return load_spec(spec, [*more, *(f"{name}={value}" for name, value in values.items())])


def test_a_fit_comes_to_the_parameters_asked_and_its_spec_says_so():
    found = fit(LLAMA, ["hidden_size=multiple_of:128", "stack.num_layers=16..48"], params=7 * 10**9)
    assert found.values == {"embedding.hidden_size": 5760, "stack.num_layers": 18}
    (met,) = found.met
    total = estimate(loads_spec(found.spec_text())).parameters.total
    assert met.found == total == estimate(overridden(LLAMA, found.values)).parameters.total == 6_998_474_880
    assert met.difference_percent == pytest.approx(-0.0218, abs=1e-4)
    assert found.num_combinations == 512 * 33
    assert found.num_tried < 500
    assert found.bisected == "embedding.hidden_size"


@pytest.mark.parametrize(
    ("goal", "free"),
    [
        (
            {"params": 6_500_000_000},
            {"embedding.hidden_size": range(1024, 6144, 256), "stack.num_layers": range(20, 40, 4)},
        ),
        (
            {"active_params": 5_000_000_000},
            {"embedding.hidden_size": range(1024, 6144, 512), "ffns.mlp.intermediate_size": range(4096, 20480, 1024)},
        ),
        (
            {"cache_at": (8192, 600 << 20)},
            {"stack.num_layers": range(8, 64), "mixers.attn.num_kv_heads": [1, 2, 4, 8, 16]},
        ),
        (
            {"memory": "24GB", "max_model_len": 65536},
            {"stack.num_layers": range(8, 64), "mixers.attn.num_kv_heads": [1, 2, 4, 8]},
        ),
        (
            {"params": 6 * 10**9, "cache_at": (8192, 600 << 20)},
            {"stack.num_layers": range(8, 64), "mixers.attn.num_kv_heads": [2, 8]},
        ),
    ],
)
def test_bisection_finds_the_best_of_all_combinations(
    goal: dict[str, Any], free: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    whole = fit(LLAMA, free, within=0.5, **goal)
    assert (whole.bisected, whole.num_tried) == ("", whole.num_combinations)
    monkeypatch.setattr(fit_search, "MAX_GRID", 1)
    found = fit(LLAMA, free, within=0.5, **goal)
    assert found.bisected
    assert found.num_tried < whole.num_tried
    assert found.values == whole.values


def test_the_whole_grid_is_judged_by_estimates_of_its_own():
    free = {"embedding.hidden_size": [2048, 3072, 4096], "stack.num_layers": [16, 24, 32]}
    target = 4_000_000_000
    distances = {
        (width, depth): abs(
            estimate(overridden(LLAMA, {"embedding.hidden_size": width, "stack.num_layers": depth})).parameters.total
            - target
        )
        for width, depth in itertools.product(*free.values())
    }
    found = fit(LLAMA, free, params=target, within=0.5)
    assert tuple(found.values.values()) == min(distances, key=lambda pair: distances[pair])


def test_rules_of_the_spec_leave_out_what_is_invalid():
    found = fit(KIMI, {"stack.num_layers": range(8, 64)}, params=63 * 10**9)
    # (kda*3 mla)* kda*2 mla: three more than a multiple of four.
    assert found.values["stack.num_layers"] % 4 == 3
    assert found.num_invalid == 42
    load_spec(KIMI, [f"stack.num_layers={found.values['stack.num_layers']}"])


def test_a_limit_is_filled_and_never_passed():
    found = fit(KIMI, {"stack.num_layers": range(7, 100, 4)}, cache_at=(131072, 2 << 30))
    depth = found.values["stack.num_layers"]
    caches = [
        estimate(load_spec(KIMI, [f"stack.num_layers={each}"]), max_model_len=131072).cache.used_bytes
        for each in (depth, depth + 4)
    ]
    assert caches[0] == found.met[0].found <= 2 << 30 < caches[1]


def test_a_device_holds_weights_and_cache():
    found = fit(KIMI, ["num_experts=16..512..8"], memory="h200", max_model_len=131072, batch_size=8)
    one = estimate(overridden(KIMI, found.values), max_model_len=131072, batch_size=8)
    assert found.met[0].found == one.weights.bytes + one.cache.used_bytes
    more = estimate(
        overridden(KIMI, {"ffns.moe.num_experts": found.values["ffns.moe.num_experts"] + 8}),
        max_model_len=131072,
        batch_size=8,
    )
    assert found.met[0].found <= find_device("h200").memory_bytes < more.weights.bytes + more.cache.used_bytes


def test_a_number_is_met_within_the_limits_beside_it():
    free = {"stack.num_layers": range(8, 64), "mixers.attn.num_kv_heads": [1, 2, 4, 8]}
    found = fit(LLAMA, free, params=8 * 10**9, cache_at=(8192, 256 << 20))
    assert found.quantities["cache_bytes_at_8192"] <= 256 << 20
    assert abs(found.quantities["parameters"] / 8e9 - 1) < 0.05


@pytest.mark.parametrize(
    ("free", "goal", "message"),
    [
        (
            {"embedding.hidden_size": range(1024, 8192, 128), "stack.num_layers": [8, 32]},
            {"params": 10**8},
            r"parameters: the smallest possible is 698.89 M \(698,893,312\) > 100.00 M \(100,000,000\) "
            r"at embedding.hidden_size=1024, stack.num_layers=8",
        ),
        (
            {"stack.num_layers": range(8, 33)},
            {"params": 10**11},
            r"the largest possible is 8.03 G \(8,030,261,248\) < 100.00 G \(100,000,000,000\) at stack.num_layers=32",
        ),
        (
            {"stack.num_layers": range(8, 64)},
            {"cache_at": (131072, 2 << 30)},
            r"cache at 131,072 tokens: the smallest possible is 4.000 GiB \(4,294,967,296 B\) > 2.000 GiB .* at "
            r"stack.num_layers=8",
        ),
        (
            {"stack.num_layers": [8, 32]},
            {"params": 5 * 10**9},
            r"nothing comes near 5.00 G .*; the nearest are 2.80 G .* at stack.num_layers=8 and 8.03 G .* at stack.num_layers=32",
        ),
        (
            {"stack.num_layers": range(8, 64)},
            {"params": 8 * 10**9, "cache_at": (131072, 8 << 30)},
            r"parameters 8.00 G .* can't be had within the limits: cache at 131,072 tokens is 15.\d* GiB .* > 8.000 GiB .* at "
            r"stack.num_layers=3[01]",
        ),
        (
            {"stack.num_layers": range(8, 64)},
            {"params": 8 * 10**9, "active_params": 4 * 10**9},
            r"parameters and active parameters contradict each other: the nearest are",
        ),
        (
            {"mixers.attn.num_kv_heads": [3, 5, 6, 7]},
            {"params": 8 * 10**9},
            r"no combination of the values is valid: mixers.attn.num_kv_heads: .*\(1 of 4 tried\)",
        ),
    ],
)
def test_a_fit_that_can_not_be_says_what_stands_against_it(free: dict[str, Any], goal: dict[str, Any], message: str):
    with pytest.raises(NoFitError, match=message):
        fit(LLAMA, free, **goal)


def test_everything_wrong_is_said_at_once():
    with pytest.raises(SpecError) as caught:
        fit(
            LLAMA,
            [
                "hidden_siz=8",
                "attn.num_heads=8",
                "stack.num_layer=3..9",
                "mixers.attn.head_dim=9..3",
                "nonsense",
                "kind=a,b",
            ],
            memory="h20",
            within=2,
            batch_size=0,
        )
    text = str(caught.value)
    for part in (
        "hidden_siz: the spec states no such key. Did you mean hidden_size?",
        "attn.num_heads: unknown key",
        "stack.num_layer: unknown key. Did you mean num_layers?",
        "9..3: ends below its start",
        "nonsense: should be KEY=RANGE",
        "kind: stands more than once. Say which: ",
        "device 'h20' is unknown. Did you mean h200-sxm?",
        "within should be at least 0 and below 1",
        "batch_size should be at least 1",
    ):
        assert part in text, part


def test_a_fit_needs_a_goal_and_a_free_key():
    with pytest.raises(ArchcError, match="nothing is asked for"):
        fit(LLAMA, {"stack.num_layers": [8]})
    with pytest.raises(ArchcError, match="nothing to solve for"):
        fit(LLAMA, {}, params=1)


def test_too_many_combinations_are_refused():
    free = {
        f"{key}": range(1, 2000) for key in ("stack.num_layers", "embedding.hidden_size", "ffns.mlp.intermediate_size")
    }
    with pytest.raises(ArchcError, match=r"combinations \(1,999 x 1,999 x 1,999\) are too many"):
        fit(LLAMA, free, params=10**9)


def test_multiples_go_up_to_sixteen_times_what_is_there():
    tree, file = read_tree(LLAMA)
    (key,) = free_keys(["hidden_size=multiple_of:128"], tree, file)
    values = [key.node(index) for index in (0, 1, key.number - 1)]
    assert [None if node is None else node.value for node in values] == [128, 256, 4096 * 16]


def test_the_solution_is_a_spec_of_its_own(tmp_path: Path):
    found = fit(KIMI, ["num_experts=16..512..8"], params=30 * 10**9)
    path = tmp_path / "thirty.yaml"
    path.write_text(found.spec_text("thirty"))
    spec = load_spec(path)
    assert (spec.name, spec.ffns["moe"].num_experts) == ("thirty", found.values["ffns.moe.num_experts"])
    assert estimate(spec).parameters.total == found.quantities["parameters"]


def test_a_cost_that_falls_as_a_key_grows_is_bisected_too(monkeypatch: pytest.MonkeyPatch):
    free = {"mixers.attn.num_kv_heads": [8, 4, 2, 1], "stack.num_layers": [32]}
    whole = fit(LLAMA, free, cache_at=(8192, 400 << 20))
    monkeypatch.setattr(fit_search, "MAX_GRID", 1)
    assert (
        fit(LLAMA, free, cache_at=(8192, 400 << 20)).values
        == whole.values
        == {
            "mixers.attn.num_kv_heads": 2,
            "stack.num_layers": 32,
        }
    )


def test_a_line_that_rises_and_falls_is_asked_whole(monkeypatch: pytest.MonkeyPatch):
    free = {"stack.num_layers": [8, 40, 9, 41, 10, 42, 11, 12, 20, 13, 30]}
    whole = fit(LLAMA, free, params=5_500_000_000, within=0.5)
    monkeypatch.setattr(fit_search, "MAX_GRID", 1)
    assert fit(LLAMA, free, params=5_500_000_000, within=0.5).values == whole.values


def test_fit_is_a_function_of_the_library():
    assert archc.fit is fit
