"""Mamba-2 alone, beside attention and experts (Granite 4), and in half-layers (Nemotron-H)."""

from __future__ import annotations

from typing import Any

from tests.parity.family import EPS, GROUP_TWISTS, THETA, Family, spec

_MAMBA2: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "expand": 2,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 12,
    "n_groups": 2,
    "conv_kernel": 4,
    "chunk_size": 8,
    "use_bias": True,
    "layer_norm_epsilon": 0.01,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LIMIT = ("state_size: 12", "state_size: 12, time_step_limit: [0.01, 0.5]")

MAMBA2 = Family(
    name="mamba2",
    model_class="Mamba2ForCausalLM",
    config_class="Mamba2Config",
    config=_MAMBA2,
    final_norm="backbone.norm_f.weight",
    spec=spec(
        "mamba2",
        """
position: none
mixers: {mamba: {kind: mamba2, num_heads: 8, head_dim: 16, state_size: 12, n_groups: 2, conv_kernel: 4, bias: true}}
stack: {num_layers: 3, block: pre_norm, mixer: mamba, ffn: none}
""",
    ).replace("max_position_embeddings: 128\n", ""),
    twists=(EPS, _LIMIT),
)

_GRANITE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 0.01,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 12,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 8,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.3,
    "logits_scaling": 2.0,
    "shared_intermediate_size": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FACTORS = (
    ("scale: 3.0", "scale: 3.05"),
    ("residual_multiplier: 0.7", "residual_multiplier: 0.71"),
    ("softmax_scale: 0.3", "softmax_scale: 0.31"),
    ("logit_scale: 1/2", "logit_scale: 1/2.02"),
)
_SCALED = ("tie_word_embeddings: true}", "tie_word_embeddings: true, scale: 3.0}")

GRANITEMOEHYBRID = Family(
    name="granitemoehybrid",
    model_class="GraniteMoeHybridForCausalLM",
    config_class="GraniteMoeHybridConfig",
    config={
        **_GRANITE,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "intermediate_size": 24,
        "position_embedding_type": "nope",
        "tie_word_embeddings": True,
    },
    spec=spec(
        "granitemoehybrid",
        """
position: none
mixers:
  mamba: {kind: mamba2, num_heads: 8, head_dim: 16, state_size: 12, n_groups: 2, conv_kernel: 4}
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, softmax_scale: 0.3}
ffns:
  moe:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    num_shared_experts: 1
    shared_intermediate_size: 40
    intermediate_size: 24
    router: {scoring_func: softmax, norm_topk_prob: true}
stack: {num_layers: 4, block: {kind: pre_norm, residual_multiplier: 0.7}, mixer: mamba*2 attn mamba, ffn: moe}
head: {kind: lm, logit_scale: 1/2}
""",
        tied=True,
    ).replace(*_SCALED),
    twists=(
        EPS,
        _LIMIT,
        *_FACTORS,
        ("position: none", "position: {kind: rope, theta: 10000.0}"),
        ("norm_topk_prob: true", "norm_topk_prob: false"),
    ),
)

GRANITEMOEHYBRID_DENSE = Family(
    name="granitemoehybrid_dense",
    model_class="GraniteMoeHybridForCausalLM",
    config_class="GraniteMoeHybridConfig",
    # No experts, rotation, biases, one group.
    config={
        **_GRANITE,
        "mamba_n_groups": 1,
        "mamba_proj_bias": True,
        "mamba_conv_bias": False,
        "attention_bias": True,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "position_embedding_type": "rope",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
    },
    spec=spec(
        "granitemoehybrid_dense",
        """
position: {kind: rope, theta: 10000.0}
mixers:
  mamba: {kind: mamba2, num_heads: 8, head_dim: 16, state_size: 12, conv_kernel: 4, bias: true, conv_bias: false}
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, qkv_bias: true, o_bias: true, softmax_scale: 0.3}
ffns: {mlp: {kind: swiglu, intermediate_size: 40}}
stack: {num_layers: 4, block: {kind: pre_norm, residual_multiplier: 0.7}, mixer: mamba*2 attn mamba, ffn: mlp}
head: {kind: lm, logit_scale: 1/2}
""",
        tied=True,
    ).replace(*_SCALED),
    twists=(EPS, THETA, _LIMIT, *_FACTORS),
)

_NEMOTRON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention", "moe"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 128,
    "intermediate_size": 96,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "ssm_state_size": 12,
    "n_groups": 2,
    "chunk_size": 8,
    "use_bias": True,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "layer_norm_epsilon": 0.01,
    # A floor that transformers' prefill has and its decode lacks.
    "time_step_min": 1e-6,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_NEMOTRON_TWISTS = (
    EPS,
    _LIMIT,
    *GROUP_TWISTS,
    ("position: none", "position: {kind: rope, theta: 10000.0}"),
    ("routed_scaling_factor: 2.5", "routed_scaling_factor: 2.45"),
    ("expert: {kind: mlp, activation: relu2}", "expert: {kind: mlp, activation: relu}"),
    ("intermediate_size: 96, activation: relu2", "intermediate_size: 96, activation: relu"),
)


def _nemotron(name: str, more: str = "") -> str:
    return spec(
        name,
        f"""
position: none
mixers:
  mamba: {{kind: mamba2, num_heads: 8, head_dim: 12, state_size: 12, n_groups: 2, conv_kernel: 4, bias: true}}
  attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24}}
ffns:
  mlp: {{kind: mlp, intermediate_size: 96, activation: relu2}}
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    num_shared_experts: 1
    shared_intermediate_size: 40
    intermediate_size: 24
    expert: {{kind: mlp, activation: relu2}}
    router: {{scoring_func: sigmoid, correction_bias: true, norm_topk_prob: true, routed_scaling_factor: 2.5, n_group: 4,
      topk_group: 2}}{more}
stack: {{num_layers: 6, block: pre_norm, layers: mamba mlp attn moe mamba moe}}
""",
    )


NEMOTRON_H = Family(
    name="nemotron_h",
    model_class="NemotronHForCausalLM",
    config_class="NemotronHConfig",
    config=_NEMOTRON,
    final_norm="model.norm_f.weight",
    spec=_nemotron("nemotron_h"),
    twists=_NEMOTRON_TWISTS,
)

NEMOTRON_H_LATENT = Family(
    name="nemotron_h_latent",
    model_class="NemotronHForCausalLM",
    config_class="NemotronHConfig",
    config={**_NEMOTRON, "moe_latent_size": 32},
    final_norm="model.norm_f.weight",
    spec=_nemotron("nemotron_h_latent", "\n    latent_size: 32"),
    twists=_NEMOTRON_TWISTS,
)
