"""Latent attention, and Kimi Linear, which mixes it with delta attention."""

from __future__ import annotations

from tests.parity.family import (
    EPS,
    FULL,
    GROUP_TWISTS,
    LINEAR,
    MLA,
    ROPE,
    THETA,
    TRUNCATED_TWISTS,
    YARN,
    Family,
    config,
    spec,
)

DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    model_class="DeepseekV2ForCausalLM",
    config_class="DeepseekV2Config",
    # Groups limit the choice only where more experts are chosen than groups are kept.
    config=config(
        **MLA,
        first_k_dense_replace=1,
        n_routed_experts=8,
        n_shared_experts=2,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.7,
        attention_bias=True,
        rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    ),
    spec=spec(
        "deepseek_v2",
        """
position:
  kind: rope
  theta: 100.0
  interleaved: true
  scaling:
    kind: yarn
    factor: 4.0
    original_max_position_embeddings: 32
    beta_fast: 1.0
    beta_slow: 0.3
    mscale: 0.707
    mscale_all_dim: 0.707
mixers:
  mla:
    kind: mla
    num_heads: 4
    q_lora_rank: 32
    kv_lora_rank: 24
    qk_nope_head_dim: 16
    qk_rope_head_dim: 8
    v_head_dim: 12
    bias: true
ffns:
  dense: {kind: swiglu, intermediate_size: 96}
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 3
    num_shared_experts: 2
    intermediate_size: 24
    router:
      scoring_func: softmax
      norm_topk_prob: false
      routed_scaling_factor: 1.7
      n_group: 4
      topk_group: 2
      group_score: max
stack: {num_layers: 3, block: pre_norm, mixer: mla, ffn: dense moe*}
""",
    ),
    twists=(
        EPS,
        *TRUNCATED_TWISTS,
        ("    mscale: 0.707", "    mscale: 0.72"),
        ("mscale_all_dim: 0.707", "mscale_all_dim: 0.72"),
        ("norm_topk_prob: false", "norm_topk_prob: true"),
        ("routed_scaling_factor: 1.7", "routed_scaling_factor: 1.71"),
        ("topk_group: 2", "topk_group: 3"),
        ("group_score: max", "group_score: top2_sum"),
    ),
)

DEEPSEEK_V2_LITE = Family(
    name="deepseek_v2_lite",
    model_class="DeepseekV2ForCausalLM",
    config_class="DeepseekV2Config",
    config=config(
        **{**MLA, "q_lora_rank": None},
        first_k_dense_replace=1,
        n_routed_experts=8,
        n_shared_experts=2,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        topk_method="greedy",
        routed_scaling_factor=1.0,
        rope_parameters=ROPE,
    ),
    spec=spec(
        "deepseek_v2_lite",
        """
position: {kind: rope, theta: 10000.0, interleaved: true}
mixers:
  mla:
    kind: mla
    num_heads: 4
    q_lora_rank: null
    kv_lora_rank: 24
    qk_nope_head_dim: 16
    qk_rope_head_dim: 8
    v_head_dim: 12
ffns:
  dense: {kind: swiglu, intermediate_size: 96}
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 3
    num_shared_experts: 2
    intermediate_size: 24
    router: {scoring_func: softmax, norm_topk_prob: false}
stack: {num_layers: 3, block: pre_norm, mixer: mla, ffn: dense moe*}
""",
    ),
    twists=(
        THETA,
        ("interleaved: true", "interleaved: false"),
        ("norm_topk_prob: false", "norm_topk_prob: true"),
        ("norm_topk_prob: false", "norm_topk_prob: false, routed_scaling_factor: 1.01"),
    ),
)

DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    model_class="DeepseekV3ForCausalLM",
    config_class="DeepseekV3Config",
    # The published models have equal mscales, which hides the factor on cos and sin.
    config=config(
        **MLA,
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
        rope_parameters={**YARN, "mscale": 1.5, "mscale_all_dim": 0.8},
    ),
    spec=spec(
        "deepseek_v3",
        """
position:
  kind: rope
  theta: 100.0
  interleaved: true
  scaling:
    kind: yarn
    factor: 4.0
    original_max_position_embeddings: 32
    beta_fast: 1.0
    beta_slow: 0.3
    mscale: 1.5
    mscale_all_dim: 0.8
mixers:
  mla:
    kind: mla
    num_heads: 4
    q_lora_rank: 32
    kv_lora_rank: 24
    qk_nope_head_dim: 16
    qk_rope_head_dim: 8
    v_head_dim: 12
ffns:
  dense: {kind: swiglu, intermediate_size: 96}
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
stack: {num_layers: 3, block: pre_norm, mixer: mla, ffn: dense moe*}
""",
    ),
    twists=(
        EPS,
        *TRUNCATED_TWISTS,
        ("    mscale: 1.5", "    mscale: 1.51"),
        ("mscale_all_dim: 0.8", "mscale_all_dim: 0.81"),
        ("routed_scaling_factor: 2.5", "routed_scaling_factor: 2.51"),
        *GROUP_TWISTS,
    ),
)

DEEPSEEK_V32 = Family(
    name="deepseek_v32",
    model_class="DeepseekV32ForCausalLM",
    config_class="DeepseekV32Config",
    # Few index heads would tie at a score of 0, which the two break each in its own way; the choice is 7 of up to 32.
    config=config(
        **MLA,
        first_k_dense_replace=1,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        attention_bias=True,
        index_n_heads=16,
        index_head_dim=12,
        index_topk=7,
        rope_parameters={**YARN, "mscale": 1.5, "mscale_all_dim": 0.8},
    ),
    spec=spec(
        "deepseek_v32",
        """
position:
  kind: rope
  theta: 100.0
  interleaved: true
  scaling:
    kind: yarn
    factor: 4.0
    original_max_position_embeddings: 32
    beta_fast: 1.0
    beta_slow: 0.3
    mscale: 1.5
    mscale_all_dim: 0.8
mixers:
  dsa:
    kind: sparse_mla
    num_heads: 4
    q_lora_rank: 32
    kv_lora_rank: 24
    qk_nope_head_dim: 16
    qk_rope_head_dim: 8
    v_head_dim: 12
    bias: true
    indexer: {num_heads: 16, head_dim: 12, topk: 7}
ffns:
  dense: {kind: swiglu, intermediate_size: 96}
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
stack: {num_layers: 3, block: pre_norm, mixer: dsa, ffn: dense moe*}
""",
    ),
    twists=(
        EPS,
        *TRUNCATED_TWISTS,
        ("topk: 7", "topk: 6"),
        ("topk: 7", "topk: 8"),
        ("    mscale: 1.5", "    mscale: 1.51"),
        ("mscale_all_dim: 0.8", "mscale_all_dim: 0.81"),
        ("routed_scaling_factor: 2.5", "routed_scaling_factor: 2.51"),
        *GROUP_TWISTS,
    ),
)

KIMI_LINEAR = Family(
    name="kimi_linear",
    model_class="KimiLinearForCausalLM",
    config_class="KimiLinearConfig",
    config=config(
        **{**MLA, "q_lora_rank": None},
        num_hidden_layers=4,
        layer_types=[LINEAR, LINEAR, FULL, LINEAR],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        num_local_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.446,
        norm_topk_prob=True,
        linear_head_dim=16,
        linear_num_heads=3,
        linear_conv_kernel_dim=4,
    ),
    seed=1,
    spec=spec(
        "kimi_linear",
        """
position: none
mixers:
  kda: {kind: kda, num_heads: 3, head_dim: 16, conv_kernel: 4}
  mla: {kind: mla, num_heads: 4, kv_lora_rank: 24, qk_nope_head_dim: 16, qk_rope_head_dim: 8, v_head_dim: 12}
ffns:
  dense: {kind: swiglu, intermediate_size: 96}
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
      routed_scaling_factor: 2.446
      n_group: 4
      topk_group: 2
stack: {num_layers: 4, block: pre_norm, mixer: kda*2 mla kda, ffn: dense moe*}
""",
    ),
    twists=(
        EPS,
        ("position: none", "position: {kind: rope, theta: 10000.0}"),
        ("conv_kernel: 4}", "conv_kernel: 4, decay_floor: -5.0}"),
        ("routed_scaling_factor: 2.446", "routed_scaling_factor: 2.45"),
        *GROUP_TWISTS,
    ),
)
