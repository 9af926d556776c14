"""Gated DeltaNet beside attention: Qwen3-Next and Qwen3.5, which gate both, and OLMo Hybrid."""

from __future__ import annotations

from typing import Any

from tests.parity.delta_weights import KEY_DIM, KEY_HEADS, VALUE_DIM, VALUE_HEADS
from tests.parity.family import EPS, FULL, GQA, LINEAR, NOT_RENORMALISED, ROPE, THETA, Family, config, spec

GDN = (
    f"{{kind: gated_deltanet, num_key_heads: {KEY_HEADS}, num_value_heads: {VALUE_HEADS}, "
    f"key_head_dim: {KEY_DIM}, value_head_dim: {VALUE_DIM}, conv_kernel: 4%s}}"
)
SHIFTED_NORM = ("eps: 0.01}", "eps: 0.01, weight_offset: 1.0}")
NOT_ROTATED = {"rope_type": "default", "rope_theta": None}
QUARTER = "position: {kind: rope, theta: 10000.0, partial_rotary_factor: 0.25}"
GATED_TWISTS = (
    EPS,
    THETA,
    ("weight_offset: 1.0", "weight_offset: 0.99"),
    ("partial_rotary_factor: 0.25", "partial_rotary_factor: 0.5"),
    ("conv_kernel: 4}", "conv_kernel: 4, allow_neg_eigval: true}"),
)


def hybrid(**changes: Any) -> dict[str, Any]:
    """Four layers, the third of them attention."""
    delta = {
        "num_hidden_layers": 4,
        "layer_types": [LINEAR, LINEAR, FULL, LINEAR],
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": KEY_DIM,
        "linear_value_head_dim": VALUE_DIM,
        "linear_conv_kernel_dim": 4,
    }
    return config(**{**GQA, **delta, **changes})


QWEN3_NEXT = Family(
    name="qwen3_next",
    model_class="Qwen3NextForCausalLM",
    config_class="Qwen3NextConfig",
    config=hybrid(
        mlp_only_layers=[0],
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        norm_topk_prob=True,
        rope_parameters={**ROPE, "partial_rotary_factor": 0.25},
    ),
    spec=spec(
        "qwen3_next",
        f"""
{QUARTER}
mixers:
  gdn: {GDN % ""}
  attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qk_norm: head, output_gate: true}}
ffns:
  dense: {{kind: swiglu, intermediate_size: 96}}
  moe:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    num_shared_experts: 1
    shared_intermediate_size: 40
    shared_gate: true
    intermediate_size: 24
    router: {{scoring_func: softmax, norm_topk_prob: true}}
stack: {{num_layers: 4, block: pre_norm, mixer: gdn*2 attn gdn, ffn: dense moe*}}
""",
    ).replace(*SHIFTED_NORM),
    twists=(*GATED_TWISTS, NOT_RENORMALISED, ("scoring_func: softmax", "scoring_func: sigmoid")),
)

QWEN3_5 = Family(
    name="qwen3_5",
    model_class="Qwen3_5ForCausalLM",
    config_class="Qwen3_5TextConfig",
    config=hybrid(rope_parameters={**ROPE, "partial_rotary_factor": 0.25}),
    spec=spec(
        "qwen3_5",
        f"""
{QUARTER}
mixers:
  gdn: {GDN % ""}
  attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qk_norm: head, output_gate: true}}
ffns: {{mlp: {{kind: swiglu, intermediate_size: 96}}}}
stack: {{num_layers: 4, block: pre_norm, mixer: gdn*2 attn gdn, ffn: mlp}}
""",
    ).replace(*SHIFTED_NORM),
    twists=GATED_TWISTS,
)

OLMO_HYBRID = Family(
    name="olmo_hybrid",
    model_class="OlmoHybridForCausalLM",
    config_class="OlmoHybridConfig",
    # Its delta layers norm their output with 1e-5 whatever the config says, so the config says it too.
    config=hybrid(head_dim=24, rms_norm_eps=1e-5, linear_allow_neg_eigval=True, rope_parameters=NOT_ROTATED),
    spec=spec(
        "olmo_hybrid",
        f"""
position: none
mixers:
  gdn: {GDN % ", allow_neg_eigval: true"}
  attn: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qk_norm: width, block: output_norm}}
ffns: {{mlp: {{kind: swiglu, intermediate_size: 96}}}}
stack: {{num_layers: 4, block: pre_norm, mixer: gdn*2 attn gdn, ffn: mlp}}
""",
    ).replace("eps: 0.01", "eps: 1e-5"),
    twists=(
        ("eps: 1e-5", "eps: 1e-3"),
        ("position: none", "position: {kind: rope, theta: 10000.0}"),
        ("allow_neg_eigval: true", "allow_neg_eigval: false"),
    ),
)
