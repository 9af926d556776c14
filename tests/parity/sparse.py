"""Mixtures of experts with grouped-query attention."""

from __future__ import annotations

from tests.parity.family import GQA, NARROWER, NOT_RENORMALISED, ROPE, WIDER, YARN, YARN_TWISTS, Family, config, spec

MIXTRAL = Family(
    name="mixtral",
    model_class="MixtralForCausalLM",
    config_class="MixtralConfig",
    config=config(
        **{**GQA, "intermediate_size": 32},
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=8,
        rope_parameters=ROPE,
    ),
    spec=spec(
        "mixtral",
        """
position: {kind: rope, theta: 10000.0}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, sliding_window: 8}}
ffns:
  moe:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    intermediate_size: 32
    router: {scoring_func: softmax, norm_topk_prob: true}
stack: {num_layers: 3, block: pre_norm, mixer: attn, ffn: moe}
""",
    ),
    twists=(NARROWER, WIDER, NOT_RENORMALISED, ("scoring_func: softmax", "scoring_func: sigmoid")),
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    model_class="Qwen3MoeForCausalLM",
    config_class="Qwen3MoeConfig",
    config=config(
        **GQA,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        norm_topk_prob=True,
        mlp_only_layers=[0],
        use_sliding_window=True,
        sliding_window=8,
        rope_parameters=ROPE,
    ),
    spec=spec(
        "qwen3_moe",
        """
position: {kind: rope, theta: 10000.0}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qk_norm: head, sliding_window: 8}}
ffns:
  dense: {kind: swiglu, intermediate_size: 96}
  moe:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    intermediate_size: 32
    router: {scoring_func: softmax, norm_topk_prob: true}
stack: {num_layers: 3, block: pre_norm, mixer: attn, ffn: dense moe*}
""",
    ),
    twists=(NARROWER, WIDER, NOT_RENORMALISED),
)

GPT_OSS = Family(
    name="gpt_oss",
    model_class="GptOssForCausalLM",
    config_class="GptOssConfig",
    config=config(
        **{**GQA, "intermediate_size": 32, "head_dim": 16},
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=8,
        swiglu_limit=1.5,
        rope_parameters={**YARN, "truncate": False},
    ),
    spec=spec(
        "gpt_oss",
        """
position:
  kind: rope
  theta: 100.0
  scaling:
    kind: yarn
    factor: 4.0
    original_max_position_embeddings: 32
    beta_fast: 1.0
    beta_slow: 0.3
    truncate: false
mixers:
  full: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, qkv_bias: true, o_bias: true, sink_logits: true}
  sliding: {extends: full, sliding_window: 8}
ffns:
  moe:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    intermediate_size: 32
    expert: {kind: clamped_swiglu, limit: 1.5, alpha: 1.702, up_offset: 1.0, bias: true}
    router: {scoring_func: softmax, norm_topk_prob: true, bias: true}
stack: {num_layers: 3, block: pre_norm, mixer: sliding full sliding, ffn: moe}
""",
    ),
    twists=(
        *YARN_TWISTS,
        ("truncate: false", "truncate: true"),
        ("sink_logits: true}", "sink_logits: true, position: {kind: rope, theta: 100.0}}"),
        NARROWER,
        WIDER,
        ("mixer: sliding full sliding", "mixer: full sliding full"),
        ("limit: 1.5", "limit: 1.6"),
        ("alpha: 1.702", "alpha: 1.71"),
        ("up_offset: 1.0", "up_offset: 1.01"),
        NOT_RENORMALISED,
    ),
)
