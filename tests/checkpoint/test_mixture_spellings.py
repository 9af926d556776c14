"""Older spellings of mixtures, latent attention and hybrids: a published file gives the graph of what transformers reads."""

from __future__ import annotations

import pytest

from archc.checkpoint.importing import import_data
from archc.errors import ArchcError
from tests.checkpoint.spelling import LLAMA, Old, each_key_is_heard, graph_of, says_what_transformers_reads

YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 8,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.8,
}
GQA = {**LLAMA, "head_dim": 24, "rope_theta": 50000.0, "tie_word_embeddings": False}
LATENT = {
    **{key: value for key, value in LLAMA.items() if key != "num_key_value_heads"},
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "moe_intermediate_size": 24,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "aux_loss_alpha": 0.001,
    "seq_aux": True,
    "moe_layer_freq": 1,
    "ep_size": 1,
    "pretraining_tp": 1,
}
DEEPSEEK = {
    **LATENT,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "rope_theta": 20000.0,
    "rope_scaling": YARN,
}
DEEPSEEK_V3 = {
    **DEEPSEEK,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": False,
    "routed_scaling_factor": 2.827,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 3,
}
QWEN35 = {
    **{key: value for key, value in GQA.items() if key != "rope_theta"},
    **DELTA,
    "attn_output_gate": True,
    "full_attention_interval": 2,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 1],
        "rope_type": "default",
        "rope_theta": 20000.0,
        "partial_rotary_factor": 0.5,
    },
}

OLD: dict[str, Old] = {
    "mixtral": Old(
        "MixtralConfig",
        {"model_type": "mixtral", **GQA, "num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 8},
        ("rope_theta", "num_local_experts", "num_experts_per_tok", "sliding_window"),
    ),
    "minimax_m2": Old(
        "MiniMaxM2Config",
        {
            "model_type": "minimax_m2",
            **GQA,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rotary_dim": 12,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
            "shared_intermediate_size": 0,
            "attn_type_list": [1, 1, 1, 1],
            "use_mtp": True,
            "num_mtp_modules": 3,
            "mtp_transformer_layers": 1,
            "layernorm_mlp_alpha": 1.0,
        },
        ("rope_theta", "rotary_dim", "num_local_experts"),
    ),
    "qwen3_moe": Old(
        "Qwen3MoeConfig",
        {
            "model_type": "qwen3_moe",
            **GQA,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 2,
        },
        ("rope_theta", "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "use_sliding_window"),
    ),
    "gpt_oss": Old(
        "GptOssConfig",
        {
            "model_type": "gpt_oss",
            **GQA,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "experts_per_token": 2,
            "initial_context_length": 32,
            "sliding_window": 8,
            "swiglu_limit": 5.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "truncate": False,
            },
        },
        ("rope_theta", "rope_scaling", "swiglu_limit", "sliding_window"),
    ),
    "gpt_oss_of_its_class": Old(
        "GptOssConfig",
        {"model_type": "gpt_oss", **GQA, "num_local_experts": 4, "num_experts_per_tok": 2},
        ("rope_theta",),
    ),
    "deepseek_v2": Old(
        "DeepseekV2Config",
        {
            "model_type": "deepseek_v2",
            **DEEPSEEK,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": 16.0,
        },
        ("rope_theta", "rope_scaling", "topk_method", "n_group", "routed_scaling_factor", "first_k_dense_replace"),
    ),
    "deepseek_v2_lite": Old(
        "DeepseekV2Config",
        {"model_type": "deepseek_v2", **DEEPSEEK, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1},
        ("rope_theta", "rope_scaling", "q_lora_rank", "n_routed_experts"),
    ),
    "deepseek_v3": Old(
        "DeepseekV3Config",
        {"model_type": "deepseek_v3", **DEEPSEEK_V3, "num_nextn_predict_layers": 2},
        (
            "rope_theta",
            "rope_scaling",
            "norm_topk_prob",
            "routed_scaling_factor",
            "n_group",
            "num_nextn_predict_layers",
        ),
    ),
    "deepseek_v32": Old(
        "DeepseekV32Config",
        {
            "model_type": "deepseek_v32",
            **DEEPSEEK_V3,
            "index_n_heads": 3,
            "index_head_dim": 12,
            "index_topk": 7,
            "num_nextn_predict_layers": 1,
        },
        (
            "rope_theta",
            "rope_scaling",
            "n_group",
            "first_k_dense_replace",
            "index_n_heads",
            "index_head_dim",
            "index_topk",
            "num_nextn_predict_layers",
        ),
    ),
    "kimi_k2": Old(
        "DeepseekV3Config",
        {"model_type": "kimi_k2", **DEEPSEEK_V3, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0},
        ("rope_theta", "n_group", "num_nextn_predict_layers"),
    ),
    "kimi_linear": Old(
        "KimiLinearConfig",
        {
            "model_type": "kimi_linear",
            "pad_token_id": 0,
            **{key: value for key, value in LATENT.items() if key not in ("max_position_embeddings", "q_lora_rank")},
            "q_lora_rank": None,
            "head_dim": 16,
            "model_max_length": 128,
            "first_k_dense_replace": 2,
            "linear_attn_config": {
                "full_attn_layers": [2, 4],
                "kda_layers": [1, 3],
                "head_dim": 16,
                "num_heads": 3,
                "short_conv_kernel_size": 3,
            },
            "mla_use_nope": True,
            "moe_renormalize": False,
            "moe_router_activation_func": "sigmoid",
            "num_expert_group": 4,
            "topk_group": 2,
            "num_experts": 8,
            "num_experts_per_token": 2,
            "num_shared_experts": 2,
            "num_nextn_predict_layers": 0,
            "rope_theta": 10000.0,
            "routed_scaling_factor": 3.0,
            "topk_method": "noaux_tc",
            "use_grouped_topk": True,
        },
        (
            "model_max_length",
            "first_k_dense_replace",
            "linear_attn_config",
            "moe_renormalize",
            "num_expert_group",
            "num_experts",
            "num_experts_per_token",
            "num_shared_experts",
        ),
    ),
    "glm4_moe": Old(
        "Glm4MoeConfig",
        {
            "model_type": "glm4_moe",
            **GQA,
            "attention_bias": True,
            "use_qk_norm": True,
            "first_k_dense_replace": 2,
            "moe_intermediate_size": 24,
            "n_group": 1,
            "topk_group": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "num_nextn_predict_layers": 2,
            "partial_rotary_factor": 0.25,
            "rope_scaling": None,
            "routed_scaling_factor": 2.5,
        },
        ("rope_theta", "partial_rotary_factor", "first_k_dense_replace", "num_nextn_predict_layers", "use_qk_norm"),
    ),
    "qwen3_next": Old(
        "Qwen3NextConfig",
        {
            "model_type": "qwen3_next",
            **GQA,
            **DELTA,
            "full_attention_interval": 2,
            "partial_rotary_factor": 0.5,
            "rope_scaling": None,
            "use_sliding_window": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
        },
        ("rope_theta", "partial_rotary_factor", "full_attention_interval", "shared_expert_intermediate_size"),
    ),
    "qwen3_5_text": Old(
        "Qwen3_5TextConfig",
        {"model_type": "qwen3_5_text", **QWEN35},
        ("rope_parameters", "full_attention_interval"),
    ),
    "qwen3_5": Old(
        "Qwen3_5Config",
        {
            "model_type": "qwen3_5",
            "text_config": {"model_type": "qwen3_5_text", **QWEN35},
            "vision_config": {"model_type": "qwen3_5", "depth": 1},
            "image_token_id": 90,
            "video_token_id": 91,
            "vision_start_token_id": 92,
            "vision_end_token_id": 93,
            "torch_dtype": "bfloat16",
        },
        (),
    ),
    "olmo_hybrid": Old(
        "OlmoHybridConfig",
        {
            "model_type": "olmo_hybrid",
            **LLAMA,
            "pad_token_id": 0,
            **DELTA,
            "rope_theta": 500000,
            "linear_allow_neg_eigval": False,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
        ("rope_theta", "linear_allow_neg_eigval", "layer_types", "linear_value_head_dim"),
    ),
    "olmo_hybrid_of_its_class": Old(
        "OlmoHybridConfig",
        {"model_type": "olmo_hybrid", **LLAMA, "pad_token_id": 0, "rope_parameters": None},
        (),
    ),
    "olmo_hybrid_turning_nothing": Old(
        "OlmoHybridConfig",
        {"model_type": "olmo_hybrid", **LLAMA, "pad_token_id": 0, "rope_theta": None},
        ("rope_theta",),
    ),
}


@pytest.mark.parametrize("name", OLD)
def test_the_published_spelling_says_what_transformers_reads(name: str) -> None:
    says_what_transformers_reads(OLD[name])


@pytest.mark.parametrize("name", OLD)
def test_each_published_key_is_heard(name: str) -> None:
    each_key_is_heard(OLD[name])


def test_layers_of_kimi_linear_are_counted_from_one() -> None:
    config = OLD["kimi_linear"].config
    assert "  mixer: (kda mla)*\n" in import_data(config, name="kimi").text
    for wrong in ([1, 3], [2, 5], [2, 4, 4]):
        lists = {**config["linear_attn_config"], "full_attn_layers": wrong}
        with pytest.raises(ArchcError, match="should name each of 1 to 4 once"):
            import_data({**config, "linear_attn_config": lists}, name="kimi")


def test_kimi_linear_without_lists_has_the_layers_of_its_class() -> None:
    config = {**OLD["kimi_linear"].config, "num_hidden_layers": 10}
    del config["linear_attn_config"]
    assert "  mixer: kda (kda*3 mla)* kda\n" in import_data(config, name="kimi").text


def test_further_layers_are_said_where_the_configuration_says_them() -> None:
    config = OLD["deepseek_v3"].config
    assert "mtp: {num_layers: 2, mixer: mla, ffn: moe}\n" in import_data(config, name="deepseek").text
    assert "mtp" not in import_data({**config, "num_nextn_predict_layers": 0}, name="deepseek").text


def test_delta_attention_of_another_form_is_refused_by_name() -> None:
    config = OLD["kimi_linear"].config
    inner = {**config["linear_attn_config"], "gate_lower_bound": -5.0}
    with pytest.raises(ArchcError, match=r"linear_attn_config\.gate_lower_bound: -5\.0 is not known"):
        import_data({**config, "linear_attn_config": inner}, name="kimi")


def test_a_head_that_kimi_linear_never_ties() -> None:
    config = OLD["kimi_linear"].config
    assert graph_of({**config, "tie_word_embeddings": True}) == graph_of(config)
