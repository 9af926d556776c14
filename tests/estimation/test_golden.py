"""Estimates of shipped specs against figures that were counted without archc."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.spec.load import load_spec

GOLDEN: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "specs" / "golden.yaml").read_text())


def qwen3_06b(**changes: str):
    overrides = {
        "embedding.hidden_size": "1024",
        "embedding.tie_word_embeddings": "true",
        "stack.num_layers": "28",
        "mixers.attn.num_heads": "16",
        "ffns.mlp.intermediate_size": "3072",
        **changes,
    }
    return load_spec("qwen3-8b", [f"{path}={value}" for path, value in overrides.items()])


@pytest.mark.parametrize("name", GOLDEN)
def test_parameters_are_exactly_the_published_ones(name: str):
    found = estimate(name).parameters
    assert (found.total, found.active) == (GOLDEN[name]["params_total"], GOLDEN[name]["params_active"])


@pytest.mark.parametrize("name", GOLDEN)
def test_cache_growth_and_states_are_exactly_the_published_ones(name: str):
    found = estimate(name).cache.to_json()
    golden = GOLDEN[name]
    assert found["bytes_per_token"] == golden["bytes_per_token"]
    assert found["bytes_per_token_below_windows"] == golden["bytes_per_token_below_windows"]
    assert found["recurrent_bytes_per_sequence"] == golden["recurrent_bytes"]
    assert found["convolution_bytes_per_sequence"] == golden["convolution_bytes"]


@pytest.mark.parametrize("name", GOLDEN)
def test_used_bytes_are_exactly_the_published_ones_at_every_length(name: str):
    graph = expand(load_spec(name))
    for tokens, expected_bytes in GOLDEN[name]["sequence_bytes"].items():
        cache = estimate(graph, max_model_len=tokens).cache
        # The table keeps recurrent states in bf16, the specs in float32.
        halved_bytes = cache.total("recurrent_bytes_per_sequence") // 2
        assert cache.used_bytes - halved_bytes == expected_bytes, tokens


@pytest.mark.parametrize("name", GOLDEN)
def test_parts_and_layer_kinds_sum_to_the_total(name: str):
    found = estimate(name)
    data = found.to_json()
    assert _leaves(data["parameters"]["by_part"]) == found.parameters.total
    outside = found.parameters.by_layer[""]
    assert sum(row["parameters"] for row in data["layers"]) + outside == found.parameters.total
    # An encoder has one forward, everything else a prefill and a decode.
    quantities = ("forward", "train_step") if "forward" in data["flops"] else ("prefill", "decode", "train_step")
    for quantity in quantities:
        assert sum(part[quantity] for part in data["flops"]["by_part"].values()) == data["flops"][quantity]
    assert sum(data["weights"]["by_dtype"].values()) == data["weights"]["bytes"]


def _leaves(tree: Any) -> int:
    return tree if isinstance(tree, int) else sum(_leaves(inner) for inner in tree.values())


def test_a_latent_cache_is_one_row_a_token_and_not_a_key_and_value_a_head():
    cache = estimate("deepseek-v3", max_model_len=131072).cache
    assert cache.bytes_per_token == 61 * 576 * 2 == 70272
    assert f"{cache.used_bytes / 2**30:.3f}" == "8.578"


def test_each_windowed_layer_is_charged_its_own_window():
    cache = estimate("gpt-oss-20b", max_model_len=131072).cache
    assert cache.used_bytes == 3 * 2**30 + 3 * 2**20
    assert estimate("gpt-oss-120b").cache.total("bytes_per_token_below_windows") == 73728


def test_head_dim_is_its_own_number_and_not_a_quotient():
    assert estimate(qwen3_06b()).cache.bytes_per_token == 28 * 2 * 8 * 128 * 2 == 114688


def test_a_tied_table_is_counted_once():
    tied, untied = estimate(qwen3_06b()), estimate(qwen3_06b(**{"embedding.tie_word_embeddings": "false"}))
    assert tied.parameters.total == 596049920
    assert untied.parameters.total == 751632384
    assert tied.parameters.embedding == 151936 * 1024
    assert tied.parameters.total == tied.parameters.embedding + tied.parameters.non_embedding
    # The head is a product, tied or not.
    assert tied.flops.numbers == untied.flops.numbers


def test_a_hybrid_says_what_grows_and_what_does_not():
    found = estimate("kimi-linear-48b-a3b", max_model_len=131072)
    kinds = {kind.name: kind for kind in found.cache.by_kind}
    assert (kinds["kda"].layers, kinds["mla"].layers) == (20, 7)
    assert (kinds["kda"].bytes_per_token, kinds["mla"].bytes_per_token) == (0, 8064)
    assert kinds["kda"].recurrent_bytes_per_sequence == 41943040
    assert kinds["kda"].convolution_bytes_per_sequence == 1474560
    assert f"{found.cache.used_bytes / 2**30:.3f}" == "1.025"


def test_memory_uses_all_experts_and_flops_the_chosen_ones():
    found = estimate("mixtral-8x7b", max_model_len=1)
    assert found.weights.bytes == 2 * found.parameters.total
    norms = found.parameters.by_part["norm",]
    matrices = found.parameters.active - found.parameters.embedding - norms
    one_pair = 32 * 2 * 32 * (128 + 128)
    assert found.flops.numbers["decode"] == 2 * matrices + one_pair


def test_correction_biases_and_extra_prediction_layers_are_apart():
    found = estimate("deepseek-v3")
    assert found.parameters.untrainable == 58 * 256
    assert found.parameters.mtp == 11610067968
    assert found.weights.bytes == 2 * found.parameters.total + 4 * found.parameters.untrainable
    assert found.weights.mtp_bytes == 2 * found.parameters.mtp + 4 * 256


def test_the_extra_prediction_layer_of_a_hybrid_is_an_attention_layer_and_a_projection():
    found = estimate("qwen3-next-80b-a3b").parameters
    assert found.mtp == 1650471424
    # What the published files hold together.
    assert found.total + found.mtp == 81324862720
