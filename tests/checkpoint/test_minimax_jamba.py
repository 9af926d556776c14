"""MiniMax-01 and Jamba: keys in both spellings, what is refused, and the model that was published."""

from __future__ import annotations

from typing import Any

import pytest

from archc.checkpoint.importing import Imported, import_data
from archc.errors import ArchcError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.graph.lockfile import to_text
from archc.spec.load import load_spec

MINIMAX: dict[str, Any] = {
    "model_type": "minimax",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "num_local_experts": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
JAMBA: dict[str, Any] = {
    "model_type": "jamba",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
}

TEXT_01: dict[str, Any] = {
    "model_type": "minimax_text_01",
    "architectures": ["MiniMaxText01ForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 200064,
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    "layernorm_full_attention_alpha": 3.5565588200778455,
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_alpha": 3.5565588200778455,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_alpha": 3.5565588200778455,
    "layernorm_mlp_beta": 1.0,
    "postnorm": True,
    "rotary_dim": 64,
    "rope_theta": 10000000,
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 10240000,
    "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid",
    "sliding_window": None,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""The published file as recalled."""


def read(base: dict[str, Any], **changes: Any) -> Imported:
    return import_data({**base, **changes}, name="tiny")


def same(one: Imported, other: Imported) -> bool:
    return to_text(one.graph) == to_text(other.graph)


def test_the_published_file_gives_the_shipped_spec_and_the_counts_of_transformers():
    found = import_data(TEXT_01, name="minimax-text-01")
    assert to_text(found.graph) == to_text(expand(load_spec("minimax-text-01")))
    # transformers' MiniMaxForCausalLM of version 5.24, built on the meta device with the same widths.
    figures = estimate(found.graph)
    assert figures.parameters.total == 456_089_655_296
    assert figures.cache.bytes_per_token == 10 * 2 * 8 * 128 * 2
    # 70 layers of 64 heads with a matrix of 128 x 128, two bytes a number.
    assert figures.cache.total("recurrent_bytes_per_sequence") == 70 * 64 * 128 * 128 * 2


def test_every_key_of_the_published_file_is_accounted_for():
    accounts = {account.key: account for account in import_data(TEXT_01, name="minimax-text-01").accounts}
    assert set(TEXT_01) <= set(accounts)
    assert "refused" not in {account.verdict for account in accounts.values()}


def test_both_spellings_of_minimax_say_the_same():
    new = read(
        MINIMAX,
        full_attn_alpha_factor=1.3,
        full_attn_beta_factor=0.9,
        linear_attn_alpha_factor=1.2,
        linear_attn_beta_factor=0.8,
        mlp_alpha_factor=1.1,
        mlp_beta_factor=0.7,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
    )
    without = {key: value for key, value in MINIMAX.items() if key != "layer_types"}
    old = read(
        without,
        model_type="minimax_text_01",
        attn_type_list=[0, 0, 0, 1],
        layernorm_full_attention_alpha=1.3,
        layernorm_full_attention_beta=0.9,
        layernorm_linear_attention_alpha=1.2,
        layernorm_linear_attention_beta=0.8,
        layernorm_mlp_alpha=1.1,
        layernorm_mlp_beta=0.7,
        rope_theta=5000.0,
        rotary_dim=12,
    )
    assert same(new, old)
    assert "mixer: lightning* attn" in new.text


def test_layers_alternate_where_the_file_says_nothing():
    without = {key: value for key, value in MINIMAX.items() if key != "layer_types"}
    assert "(attn lightning)*" in read(without).text
    with pytest.raises(ArchcError, match="layer_types is missing"):
        read(without, model_type="minimax_text_01")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_state_of_lightning_attention_has_the_dtype_of_the_activations(dtype):
    assert f"state_dtype: {dtype}" in read(MINIMAX, dtype=dtype).text
    assert "state_dtype" not in read(MINIMAX, dtype="float32").text
    assert "state_dtype" not in read(MINIMAX, dtype=dtype, layer_types=["full_attention"] * 4).text


def test_a_factor_that_all_branches_share_is_said_once():
    text = read(
        MINIMAX, full_attn_alpha_factor=3.5, linear_attn_alpha_factor=3.5, mlp_alpha_factor=3.5, block_size=8
    ).text
    assert text.count("normed_residual") == text.count("skip_multiplier: 3.5") == 1
    assert "ffn_" not in text
    assert "block: normed_residual" in read(MINIMAX).text


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("postnorm", False, "a stream that is not normed"),
        ("shared_intermediate_size", 48, "a shared expert"),
        ("hidden_act", "gelu", "is not silu"),
        ("layer_types", ["full_attention"] * 3, "for each of 4 layers"),
        ("layer_types", ["full_attention"] * 3 + ["sliding_attention"], "for each of 4 layers"),
        ("use_lightning", True, "is not known to this family"),
    ],
)
def test_what_minimax_can_not_honour_is_refused_by_name(key, value, message):
    with pytest.raises(ArchcError, match=message) as caught:
        read(MINIMAX, **{key: value})
    assert key in str(caught.value)


def test_jambas_periods_place_attention_and_experts():
    text = read(JAMBA, num_hidden_layers=6, attn_layer_period=3, attn_layer_offset=1, expert_layer_period=3).text
    assert "mixer: (mamba attn mamba)*" in text
    assert "ffn: (dense moe dense)*" in text
    assert "moe" not in read(JAMBA, num_experts=1).text
    assert "attn:" not in read(JAMBA, num_hidden_layers=4).text


def test_jambas_rank_of_steps_follows_from_the_width():
    assert "dt_rank: 4" in read(JAMBA, mamba_dt_rank="auto").text
    assert "dt_rank: 7" in read(JAMBA, mamba_dt_rank=7).text
    assert same(read(JAMBA), read(JAMBA, head_dim=16, use_mamba_kernels=False, num_logits_to_keep=1))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sliding_window", 128, "asks for windows"),
        ("mamba_inner_layernorms", False, "without its norms"),
        ("hidden_act", "gelu", "is not the activation"),
        ("mamba_headdim", 64, "is not known to this family"),
    ],
)
def test_what_jamba_can_not_honour_is_refused_by_name(key, value, message):
    with pytest.raises(ArchcError, match=message) as caught:
        read(JAMBA, **{key: value})
    assert key in str(caught.value)
