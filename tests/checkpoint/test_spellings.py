"""Older spellings: a file as it was published gives the graph of what transformers makes of it and writes today."""

from __future__ import annotations

from typing import Any

import pytest

from archc.checkpoint.importing import import_data
from archc.errors import ArchcError
from tests.checkpoint.spelling import LLAMA, Old, each_key_is_heard, graph_of, says_what_transformers_reads

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 1.5, 2.0, 4.0]}
NO_RMS = {key: value for key, value in LLAMA.items() if key != "rms_norm_eps"}
ATTENTION = ("sliding_attention", "full_attention")
FALCON = {
    **{key: value for key, value in NO_RMS.items() if key not in ("intermediate_size", "num_key_value_heads")},
    "layer_norm_epsilon": 1e-5,
    "apply_residual_connection_post_layernorm": False,
}


OLD: dict[str, Old] = {
    "llama": Old(
        "LlamaConfig",
        {"model_type": "llama", **LLAMA, "rope_theta": 500000.0, "rope_scaling": LLAMA3, "pretraining_tp": 1},
        ("rope_theta", "rope_scaling"),
    ),
    "llama_linear": Old(
        "LlamaConfig",
        {"model_type": "llama", **LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}},
        ("rope_scaling",),
    ),
    "mistral": Old(
        "MistralConfig",
        {"model_type": "mistral", **LLAMA, "rope_theta": 1000000.0, "sliding_window": 8},
        ("rope_theta", "sliding_window"),
    ),
    "qwen2": Old(
        "Qwen2Config",
        {
            "model_type": "qwen2",
            **LLAMA,
            "rope_theta": 1000000.0,
            "rope_scaling": YARN,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 2,
        },
        ("rope_theta", "rope_scaling", "use_sliding_window", "sliding_window", "max_window_layers"),
    ),
    "olmo2": Old("Olmo2Config", {"model_type": "olmo2", **LLAMA, "rope_theta": 500000}, ("rope_theta",)),
    "granite": Old(
        "GraniteConfig",
        {
            "model_type": "granite",
            **LLAMA,
            "rope_theta": 10000000.0,
            "rope_scaling": None,
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
        },
        ("rope_theta", "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),
    ),
    "phi3": Old(
        "Phi3Config",
        {
            "model_type": "phi3",
            **LLAMA,
            "pad_token_id": 0,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 16,
            "rope_theta": 20000.0,
            "rope_scaling": LONGROPE,
            "sliding_window": 8,
            "attention_bias": False,
        },
        ("original_max_position_embeddings", "rope_theta", "rope_scaling", "sliding_window"),
    ),
    "phi3_short": Old(
        "Phi3Config",
        {
            "model_type": "phi3",
            **LLAMA,
            "pad_token_id": 0,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 128,
            "rope_scaling": LONGROPE,
        },
        ("rope_scaling",),
    ),
    "cohere2": Old(
        "Cohere2Config",
        {
            "model_type": "cohere2",
            **NO_RMS,
            "layer_norm_eps": 1e-5,
            "rope_theta": 50000.0,
            "rope_scaling": None,
            "layer_switch": 2,
            "sliding_window_pattern": 2,
            "sliding_window": 8,
            "logit_scale": 0.25,
            "cache_implementation": "hybrid",
            "order_of_interleaved_layers": "local_attn_first",
            "position_embedding_type": "rope_gptj",
            "rotary_pct": 1.0,
            "use_embedding_sharing": True,
            "use_gated_activation": True,
            "use_parallel_block": True,
            "use_parallel_embedding": True,
            "use_qk_norm": False,
        },
        ("rope_theta", "sliding_window_pattern", "sliding_window", "logit_scale"),
    ),
    "gemma2": Old(
        "Gemma2Config",
        {
            "model_type": "gemma2",
            **LLAMA,
            "rope_theta": 20000.0,
            "head_dim": 24,
            "sliding_window": 8,
            "query_pre_attn_scalar": 144,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "cache_implementation": "hybrid",
            "attn_logit_softcapping": 40.0,
            "final_logit_softcapping": 20.0,
        },
        ("rope_theta", "head_dim", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    ),
    "gemma3_text": Old(
        "Gemma3TextConfig",
        {
            "model_type": "gemma3_text",
            **LLAMA,
            "head_dim": 24,
            "rope_theta": 200000.0,
            "rope_local_base_freq": 20000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window": 8,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 168,
            "cache_implementation": "hybrid",
            "attn_logit_softcapping": 50.0,
        },
        ("rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern", "query_pre_attn_scalar"),
    ),
    "gemma3": Old(
        "Gemma3Config",
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                **{key: value for key, value in LLAMA.items() if not key.endswith("token_id")},
                "head_dim": 24,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "sliding_window": 8,
            },
            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 16},
            "boi_token_index": 90,
            "eoi_token_index": 91,
            "image_token_index": 92,
            "mm_tokens_per_image": 4,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
        },
        (),
    ),
    "gpt2": Old(
        "GPT2Config",
        {
            "model_type": "gpt2",
            "vocab_size": 96,
            "n_positions": 64,
            "n_ctx": 64,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "layer_norm_epsilon": 1e-4,
            "activation_function": "gelu",
            "scale_attn_weights": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "summary_type": "cls_index",
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
        (
            "n_positions",
            "n_embd",
            "n_layer",
            "n_head",
            "layer_norm_epsilon",
            "activation_function",
            "scale_attn_weights",
        ),
    ),
    "gpt_neox": Old(
        "GPTNeoXConfig",
        {
            "model_type": "gpt_neox",
            **{key: value for key, value in NO_RMS.items() if key != "num_key_value_heads"},
            "rotary_pct": 0.5,
            "rotary_emb_base": 20000,
            "layer_norm_eps": 1e-4,
            "use_parallel_residual": False,
        },
        ("rotary_pct", "rotary_emb_base", "layer_norm_eps", "use_parallel_residual"),
    ),
    "bloom": Old(
        "BloomConfig",
        {
            "model_type": "bloom",
            "vocab_size": 96,
            "n_embed": 48,
            "n_layer": 3,
            "num_attention_heads": 6,
            "seq_length": 128,
            "layer_norm_epsilon": 1e-4,
            "apply_residual_connection_post_layernorm": True,
            "masked_softmax_fusion": True,
            "offset_alibi": 100,
            "unk_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        ("n_embed", "n_layer", "layer_norm_epsilon", "apply_residual_connection_post_layernorm"),
    ),
    "falcon": Old(
        "FalconConfig",
        {"model_type": "falcon", **FALCON, "multi_query": True, "parallel_attn": True, "rope_theta": 20000.0},
        ("rope_theta",),
    ),
    "falcon_40b": Old(
        "FalconConfig",
        {"model_type": "falcon", **FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
        ("new_decoder_architecture", "num_kv_heads"),
    ),
    "falcon_11b": Old(
        "FalconConfig",
        {
            "model_type": "falcon",
            **FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "ffn_hidden_size": 96,
        },
        ("num_ln_in_parallel_attn", "ffn_hidden_size"),
    ),
    "falcon_rw": Old(
        "FalconConfig",
        {"model_type": "falcon", **FALCON, "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True},
        ("multi_query", "parallel_attn", "alibi", "bias"),
    ),
    "opt": Old(
        "OPTConfig",
        {
            "model_type": "opt",
            **{key: NO_RMS[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
            "ffn_dim": 96,
            "max_position_embeddings": 64,
            "do_layer_norm_before": False,
            "word_embed_proj_dim": 40,
            "_remove_final_layer_norm": False,
            "activation_dropout": 0.0,
            "activation_function": "relu",
            "init_std": 0.02,
            "layerdrop": 0.0,
            "prefix": "</s>",
            "bos_token_id": 2,
            "eos_token_id": 2,
            "pad_token_id": 1,
        },
        ("do_layer_norm_before", "word_embed_proj_dim", "ffn_dim"),
    ),
    "llama4_text": Old(
        "Llama4TextConfig",
        {
            "model_type": "llama4_text",
            **LLAMA,
            "head_dim": 24,
            "rope_theta": 10000.0,
            "rope_scaling": LLAMA3,
            "intermediate_size_mlp": 128,
            "interleave_moe_layer_step": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "no_rope_layers": [],
            "no_rope_layer_interval": 2,
            "attention_chunk_size": 8,
            "attn_temperature_tuning": True,
            "floor_scale": 16,
            "for_llm_compressor": False,
        },
        ("rope_theta", "rope_scaling", "interleave_moe_layer_step", "no_rope_layer_interval", "attention_chunk_size"),
    ),
}


@pytest.mark.parametrize("name", OLD)
def test_the_older_spelling_says_what_transformers_reads(name: str) -> None:
    says_what_transformers_reads(OLD[name])


@pytest.mark.parametrize("name", OLD)
def test_each_older_key_is_heard(name: str) -> None:
    each_key_is_heard(OLD[name])


def test_longrope_under_its_first_name() -> None:
    old = OLD["phi3"].config
    assert graph_of({**old, "rope_scaling": {**LONGROPE, "type": "su"}}) == graph_of(old)


@pytest.mark.parametrize("model_type", ["llama", "phi3", "gemma3_text", "gpt_neox", "falcon", "olmo2"])
def test_a_rope_that_is_not_known_is_refused_by_name(model_type: str) -> None:
    config = {"model_type": model_type, "rope_scaling": {"type": "spiral", "factor": 2.0}}
    with pytest.raises(ArchcError, match=r"rope_scaling\.type: 'spiral' is a rope type that is not known"):
        import_data(config, name="spiral")


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("cohere2", "use_qk_norm", True),
        ("cohere2", "use_parallel_block", False),
        ("gemma2", "use_bidirectional_attention", True),
        ("gpt2", "add_cross_attention", True),
        ("falcon", "apply_residual_connection_post_layernorm", True),
        ("falcon", "num_ln_in_parallel_attn", 2),
        ("opt", "layer_norm_elementwise_affine", False),
        ("phi3", "attention_bias", True),
        ("llama", "clip_qkv", 8.0),
        ("llama", "hidden_act", "snake"),
    ],
)
def test_what_no_graph_has_is_refused_by_name(model_type: str, key: str, value: Any) -> None:
    with pytest.raises(ArchcError, match=f"(?m)^  {key}: {value!r} "):
        import_data({"model_type": model_type, key: value, "bos_token_id": 1}, name="refused")
