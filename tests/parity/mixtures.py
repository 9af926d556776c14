"""Mixtures of experts under grouped-query attention with partial rotation: GLM-4.5 and MiniMax-M2."""

from __future__ import annotations

from tests.parity.family import EPS, GQA, GROUP_TWISTS, NOT_RENORMALISED, Family, config, spec

PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
POSITION = "position: {kind: rope, theta: 10000.0, partial_rotary_factor: 0.5}"
PARTIAL_TWISTS = (
    EPS,
    ("theta: 10000.0", "theta: 9000.0"),
    ("partial_rotary_factor: 0.5", "partial_rotary_factor: 0.25"),
    ("partial_rotary_factor: 0.5", "partial_rotary_factor: 0.5, trailing: true"),
)

GLM4_MOE = Family(
    name="glm4_moe",
    model_class="Glm4MoeForCausalLM",
    config_class="Glm4MoeConfig",
    config=config(
        **GQA,
        attention_bias=True,
        use_qk_norm=True,
        first_k_dense_replace=1,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        num_mtp_layers=0,
        rope_parameters=PARTIAL,
    ),
    spec=spec(
        "glm4_moe",
        f"""
{POSITION}
mixers: {{attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qkv_bias: true, qk_norm: head}}}}
ffns:
  dense: {{kind: swiglu, intermediate_size: 96}}
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    num_shared_experts: 1
    intermediate_size: 24
    router:
      scoring_func: sigmoid
      correction_bias: true
      norm_topk_prob: true
      routed_scaling_factor: 2.5
      n_group: 4
      topk_group: 2
stack: {{num_layers: 3, block: pre_norm, mixer: attn, ffn: dense moe*}}
""",
    ),
    twists=(*PARTIAL_TWISTS, ("routed_scaling_factor: 2.5", "routed_scaling_factor: 2.51"), *GROUP_TWISTS),
)

MINIMAX_M2 = Family(
    name="minimax_m2",
    model_class="MiniMaxM2ForCausalLM",
    config_class="MiniMaxM2Config",
    config=config(
        **{**GQA, "intermediate_size": 24},
        num_local_experts=8,
        num_experts_per_tok=2,
        rope_parameters=PARTIAL,
    ),
    spec=spec(
        "minimax_m2",
        f"""
{POSITION}
mixers: {{attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qk_norm: width}}}}
ffns:
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    intermediate_size: 24
    router: {{scoring_func: sigmoid, correction_bias: true, norm_topk_prob: true}}
stack: {{num_layers: 3, block: pre_norm, mixer: attn, ffn: moe}}
""",
    ),
    twists=(*PARTIAL_TWISTS, NOT_RENORMALISED, ("scoring_func: sigmoid", "scoring_func: softmax")),
)
