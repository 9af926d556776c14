"""Names from Hugging Face configs and other tools, and the key that says the same here: hints, for they are refused."""

from __future__ import annotations

from archc.spec.near import listed

_KEYS: dict[str, dict[str, str]] = {
    "spec": {
        "name": "_name_or_path model_name",
        "dtype": "torch_dtype",
        "max_position_embeddings": "n_positions n_ctx model_max_length max_seq_len max_sequence_length",
        "mtp": "num_nextn_predict_layers num_mtp_layers",
    },
    "embedding": {
        "hidden_size": "d_model n_embd dim model_dim",
        "embedding_size": "word_embed_proj_dim",
        "num_embeddings": "vocab_size",
        "scale": "embedding_multiplier scale_embedding rescale_embeddings",
        "tie_word_embeddings": "tie_embeddings",
    },
    "position": {
        "theta": "rope_theta rotary_emb_base global_rope_theta rope_local_base_freq rotary_base",
        "partial_rotary_factor": "rotary_pct",
        "interleaved": "rope_interleave",
        "scaling": "rope_scaling rope_parameters",
        "num_buckets": "relative_attention_num_buckets",
        "max_distance": "relative_attention_max_distance",
    },
    "norm": {"eps": "rms_norm_eps layer_norm_epsilon layer_norm_eps norm_eps epsilon", "bias": "norm_bias"},
    "block": {
        "shared_norm": "new_decoder_architecture",
        "num_streams": "hc_mult",
        "sinkhorn_iters": "hc_sinkhorn_iters",
        "eps": "hc_eps",
        "block_size": "attn_res_block_size",
    },
    "stack": {
        "num_layers": "num_hidden_layers n_layer n_layers",
        "mixer": "layer_types layers_block_type attn_layer_period attn_layer_offset full_attention_interval mixers",
        "ffn": "first_k_dense_replace mlp_layer_types decoder_sparse_step moe_layer_freq ffns",
        "layers": "hybrid_override_pattern",
        "mask": "is_decoder is_causal",
    },
    "mixer": {
        "num_heads": "num_attention_heads n_head n_heads mamba_num_heads mamba_n_heads linear_attn_config",
        "num_kv_heads": "num_key_value_heads n_kv_heads n_kv_head multi_query",
        "head_dim": "d_kv head_size mamba_head_dim mamba_d_head linear_attn_config",
        "qkv_bias": "attention_bias",
        "o_bias": "attention_bias",
        "query_temperature": "attn_scale floor_scale",
        "indexer": "index_n_heads index_head_dim index_topk",
        "compress_ratio": "compress_ratios",
        "bias": "attention_bias use_bias mamba_proj_bias",
        "conv_bias": "use_conv_bias mamba_conv_bias",
        "qk_norm": "use_qk_norm",
        "sliding_window": "local_attention",
        "attention_window": "window_size",
        "softmax_scale": "query_pre_attn_scalar attention_multiplier",
        "output_gate": "mla_use_output_gate",
        "conv_kernel": "short_conv_kernel_size linear_conv_kernel_dim mamba_d_conv",
        "full_rank_gate": "use_full_rank_gate",
        "num_key_heads": "linear_num_key_heads",
        "num_value_heads": "linear_num_value_heads",
        "key_head_dim": "linear_key_head_dim",
        "value_head_dim": "linear_value_head_dim",
        "allow_neg_eigval": "linear_allow_neg_eigval",
        "intermediate_size": "mamba_expand",
        "state_size": "ssm_state_size mamba_d_state",
        "dt_rank": "mamba_dt_rank time_step_rank",
        "n_groups": "mamba_n_groups",
        "kv_from": "num_kv_shared_layers cla_share_factor",
    },
    "ffn": {
        "intermediate_size": "moe_intermediate_size ffn_dim n_inner d_ff ffn_hidden_size",
        "activation": "hidden_act activation_function hidden_activation mlp_hidden_act",
        "bias": "mlp_bias",
        "limit": "swiglu_limit",
        "expert": "mlp_hidden_act",
        "num_experts": "n_routed_experts num_local_experts",
        "num_experts_per_tok": "num_experts_per_token moe_top_k top_k",
        "num_shared_experts": "n_shared_experts",
        "shared_intermediate_size": "shared_expert_intermediate_size moe_shared_expert_intermediate_size",
        "latent_size": "moe_latent_size routed_expert_hidden_size",
        "latent_norm": "latent_moe_use_norm",
    },
    "router": {
        "norm_topk_prob": "moe_renormalize",
        "correction_bias": "e_score_correction_bias topk_method",
        "group_score": "topk_method",
        "scoring_func": "score_function moe_router_activation_func",
    },
    "head": {
        "logit_scale": "logits_scaling scale_decoder_outputs",
        "activation": "classifier_activation",
        "dense_bias": "classifier_bias",
        "bias": "decoder_bias",
        "pool": "classifier_pooling",
    },
    "cache": {
        "policy": "cache_implementation",
        "dtype": "kv_cache_dtype",
        "state_dtype": "mamba_ssm_cache_dtype mamba_ssm_dtype",
    },
}
"""Family -> key here -> names elsewhere."""

CONFIG_ONLY = frozenset({"architectures", "model_type", "transformers_version", "auto_map", "use_cache"})
"""Keys that only a Hugging Face config has."""


def here(family: str, key: str, known: dict[str, object]) -> str:
    """The keys of ``known`` that say in this family what ``key`` says elsewhere, listed; empty when there is none."""
    return listed(ours for ours, theirs in _KEYS.get(family, {}).items() if ours in known and key in theirs.split())


def families_of(key: str) -> list[tuple[str, str]]:
    """(family, key there) of every place that says what ``key`` says elsewhere."""
    return [(family, ours) for family, keys in _KEYS.items() for ours, theirs in keys.items() if key in theirs.split()]
