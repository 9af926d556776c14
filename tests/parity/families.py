"""Tiny models of the published families: what transformers is asked to build, and the spec that must equal it.

The configs are made so that every feature matters within 32 tokens: windows shorter than the prefill, rope frequencies
of a tiny head on both ends of every ramp, groups that change the choice of experts, clamps that bite, head widths that
no division gives. The norm's eps is far from every default, so that reading it from the wrong place shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``tolerance`` is the largest float32 difference of two right implementations, with a margin of about ten.

    Rounding is amplified by the random weights, each family by its own; ``seed`` was picked for little of it. ``twists``
    are (text of the spec, another text): changes that keep every shape, each of which must move the logits.
    """

    name: str
    model_class: str
    config_class: str
    config: dict[str, Any]
    spec: str
    twists: tuple[tuple[str, str], ...]
    tolerance: float = 6e-5
    seed: int = 0


def _config(**changes: Any) -> dict[str, Any]:
    base = {
        "vocab_size": 96,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "max_position_embeddings": 128,
        "rms_norm_eps": 0.01,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return {**base, **changes}


def _spec(name: str, body: str, *, tied: bool = False) -> str:
    head = f"""
spec_version: 1
name: tiny-{name.replace("_", "-")}
dtype: float32
tokenizer: {{kind: external, vocab_size: 96}}
embedding: {{hidden_size: 64, tie_word_embeddings: {str(tied).lower()}}}
norm: {{kind: rms_norm, eps: 0.01}}
max_position_embeddings: 128
"""
    return head.lstrip() + body.strip() + "\n"


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
GQA = {"intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24}
MLA = {
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
# theta and betas put both ends of the ramp among the few frequencies of a tiny head
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 1.0,
    "beta_slow": 0.3,
}
LINEAR, FULL = "linear_attention", "full_attention"

EPS = ("eps: 0.01", "eps: 0.0101")
THETA = ("theta: 10000.0", "theta: 9900.0")
NARROWER, WIDER = (("sliding_window: 8", f"sliding_window: {rows}") for rows in (7, 9))
NOT_RENORMALISED = ("norm_topk_prob: true", "norm_topk_prob: false")
YARN_TWISTS = (
    ("theta: 100.0", "theta: 99.0"),
    ("    factor: 4.0", "    factor: 4.1"),
    ("original_max_position_embeddings: 32", "original_max_position_embeddings: 31"),
    ("beta_fast: 1.0", "beta_fast: 1.1"),
    ("beta_slow: 0.3", "beta_slow: 0.35"),
)
TRUNCATED_TWISTS = (
    *YARN_TWISTS[:2],
    ("beta_slow: 0.3", "beta_slow: 0.3\n    truncate: false"),
    ("interleaved: true", "interleaved: false"),
)
GROUP_TWISTS = (
    ("n_group: 4", "n_group: 2"),
    ("topk_group: 2", "topk_group: 3"),
    ("scoring_func: sigmoid", "scoring_func: softmax"),
    NOT_RENORMALISED,
)

LLAMA = Family(
    name="llama",
    model_class="LlamaForCausalLM",
    config_class="LlamaConfig",
    config=_config(**GQA, rope_parameters=ROPE),
    spec=_spec(
        "llama",
        """
position: {kind: rope, theta: 10000.0}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24}}
ffns: {mlp: {kind: swiglu, intermediate_size: 96}}
stack: {num_layers: 3, block: pre_norm, mixer: attn, ffn: mlp}
""",
    ),
    twists=(EPS, THETA),
)

LLAMA_LINEAR = Family(
    name="llama_linear",
    model_class="LlamaForCausalLM",
    config_class="LlamaConfig",
    config=_config(**GQA, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    spec=_spec(
        "llama_linear",
        """
position: {kind: rope, theta: 10000.0, scaling: {kind: linear, factor: 4.0}}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24}}
ffns: {mlp: {kind: swiglu, intermediate_size: 96}}
stack: {num_layers: 3, block: pre_norm, mixer: attn, ffn: mlp}
""",
    ),
    twists=(("factor: 4.0", "factor: 4.1"),),
)

LLAMA_FULL = Family(
    name="llama_full",
    model_class="LlamaForCausalLM",
    config_class="LlamaConfig",
    config=_config(
        **GQA,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    # Tied logits are about four times as large as the others', and so is their rounding.
    tolerance=2.6e-4,
    spec=_spec(
        "llama_full",
        """
position:
  kind: rope
  theta: 10000.0
  scaling: {kind: llama3, factor: 4.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position_embeddings: 16}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qkv_bias: true, o_bias: true}}
ffns: {mlp: {kind: swiglu, intermediate_size: 96, bias: true}}
stack: {num_layers: 3, block: pre_norm, mixer: attn, ffn: mlp}
""",
        tied=True,
    ),
    twists=(
        EPS,
        THETA,
        ("{kind: llama3, factor: 4.0", "{kind: llama3, factor: 4.1"),
        ("low_freq_factor: 1.0", "low_freq_factor: 1.1"),
        ("high_freq_factor: 4.0", "high_freq_factor: 4.1"),
        ("original_max_position_embeddings: 16", "original_max_position_embeddings: 15"),
    ),
)

MISTRAL = Family(
    name="mistral",
    model_class="MistralForCausalLM",
    config_class="MistralConfig",
    config=_config(**GQA, sliding_window=8, rope_parameters=ROPE),
    spec=_spec(
        "mistral",
        """
position: {kind: rope, theta: 10000.0}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, sliding_window: 8}}
ffns: {mlp: {kind: swiglu, intermediate_size: 96}}
stack: {num_layers: 3, block: pre_norm, mixer: attn, ffn: mlp}
""",
    ),
    twists=(NARROWER, WIDER),
)

MIXTRAL = Family(
    name="mixtral",
    model_class="MixtralForCausalLM",
    config_class="MixtralConfig",
    config=_config(
        **{**GQA, "intermediate_size": 32},
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=8,
        rope_parameters=ROPE,
    ),
    spec=_spec(
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

QWEN3 = Family(
    name="qwen3",
    model_class="Qwen3ForCausalLM",
    config_class="Qwen3Config",
    config=_config(
        **GQA,
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=2,
        attention_bias=True,
        rope_parameters=ROPE,
    ),
    spec=_spec(
        "qwen3",
        """
position: {kind: rope, theta: 10000.0}
mixers:
  full: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qkv_bias: true, o_bias: true, qk_norm: head}
  sliding: {extends: full, sliding_window: 8}
ffns: {mlp: {kind: swiglu, intermediate_size: 96}}
stack: {num_layers: 4, block: pre_norm, mixer: full*2 sliding*2, ffn: mlp}
""",
    ),
    twists=(
        EPS,
        NARROWER,
        WIDER,
        ("mixer: full*2 sliding*2", "mixer: sliding*2 full*2"),
        ("qk_norm: head", "qk_norm: head, softmax_scale: 1/sqrt(25)"),
    ),
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    model_class="Qwen3MoeForCausalLM",
    config_class="Qwen3MoeConfig",
    config=_config(
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
    spec=_spec(
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
    config=_config(
        **{**GQA, "intermediate_size": 32, "head_dim": 16},
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=8,
        swiglu_limit=1.5,
        rope_parameters={**YARN, "truncate": False},
    ),
    spec=_spec(
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

DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    model_class="DeepseekV2ForCausalLM",
    config_class="DeepseekV2Config",
    # Groups limit the choice only where more experts are chosen than groups are kept.
    config=_config(
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
    spec=_spec(
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
    config=_config(
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
    spec=_spec(
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
    config=_config(
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
    spec=_spec(
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

KIMI_LINEAR = Family(
    name="kimi_linear",
    model_class="KimiLinearForCausalLM",
    config_class="KimiLinearConfig",
    config=_config(
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
    spec=_spec(
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

FAMILIES = (
    LLAMA,
    LLAMA_LINEAR,
    LLAMA_FULL,
    MISTRAL,
    MIXTRAL,
    QWEN3,
    QWEN3_MOE,
    GPT_OSS,
    DEEPSEEK_V2,
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    KIMI_LINEAR,
)
