"""What configurations of mixtures, latent attention and hybrids can't ask for: refused by name, never dropped silently."""

from __future__ import annotations

from typing import Any

import pytest

from archc.checkpoint.importing import import_data
from archc.errors import ArchcError


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("mixtral", "hidden_act", "gelu"),
        ("mixtral", "num_zero_experts", 2),
        ("minimax_m2", "use_qk_norm", False),
        ("minimax_m2", "attn_type_list", [0, 1]),
        ("minimax_m2", "shared_intermediate_size", 1536),
        ("minimax_m2", "layernorm_mlp_beta", 3.5),
        ("deepseek_v2", "topk_method", "noaux_tc"),
        ("deepseek_v2", "mlp_bias", True),
        ("deepseek_v2", "num_key_value_heads", 8),
        ("deepseek_v3", "scoring_func", "softmax"),
        ("deepseek_v3", "topk_method", "greedy"),
        ("deepseek_v3", "moe_layer_freq", 2),
        ("deepseek_v32", "q_lora_rank", None),
        ("deepseek_v32", "rope_interleave", False),
        ("deepseek_v32", "layer_types", ["full_attention"] * 61),
        ("deepseek_v32", "mlp_layer_types", ["sparse"] * 60),
        ("glm4_moe", "scoring_func", "softmax"),
        ("kimi_linear", "mla_use_nope", False),
        ("kimi_linear", "moe_router_activation_func", "softmax"),
        ("kimi_linear", "attn_res_block_size", 12),
        ("qwen3_next", "attention_bias", True),
        ("qwen3_next", "use_sliding_window", True),
        ("qwen3_5_text", "attn_output_gate", False),
        ("qwen3_5_moe_text", "norm_topk_prob", False),
        ("qwen3_5_text", "hidden_act", "gelu"),
        ("olmo_hybrid", "linear_use_gate", False),
        ("olmo_hybrid", "hidden_act", "gelu"),
        ("gpt_oss", "layer_types", ["full_attention"]),
        ("gpt_oss", "layer_types", ["full_attention"] * 35 + ["chunked_attention"]),
        ("qwen3_next", "layer_types", ["full_attention"] * 47 + ["sliding_attention"]),
        ("kimi_linear", "mlp_layer_types", ["dense"] * 26),
    ],
)
def test_what_no_graph_has_is_refused_by_name(model_type: str, key: str, value: Any) -> None:
    with pytest.raises(ArchcError) as caught:
        import_data({"model_type": model_type, "num_experts_per_tok": 2, key: value}, name="refused")
    assert f"\n  {key}: {value!r} " in str(caught.value)


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss", "deepseek_v3", "glm4_moe", "qwen3_next", "olmo_hybrid"])
def test_a_rope_that_is_not_known_is_refused_by_name(model_type: str) -> None:
    config = {"model_type": model_type, "rope_scaling": {"type": "spiral", "factor": 2.0}}
    with pytest.raises(ArchcError, match=r"rope_scaling\.type: 'spiral' is a rope type that is not known"):
        import_data(config, name="spiral")
