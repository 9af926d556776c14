"""DeepSeek-V4: a layer of each kind of compressed attention, hyper-connections, experts by token id."""

from __future__ import annotations

import re
from typing import Any

from tests.parity.family import NARROWER, THETA, WIDER, YARN, YARN_TWISTS, Family, config, spec

SHARE = {"partial_rotary_factor": 0.5}
RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 6}

DEEPSEEK_V4 = Family(
    name="deepseek_v4",
    model_class="DeepseekV4ForCausalLM",
    config_class="DeepseekV4Config",
    seed=4,
    # Many index heads: with few of them scores tie at 0, and transformers keeps any of those that do.
    config=config(
        num_hidden_layers=4,
        num_attention_heads=4,
        head_dim=16,
        q_lora_rank=32,
        o_groups=2,
        o_lora_rank=12,
        sliding_window=8,
        layer_types=[
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
        ],
        mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
        compress_rates=RATES,
        index_n_heads=16,
        index_head_dim=12,
        index_topk=3,
        hc_mult=3,
        hc_sinkhorn_iters=3,
        hc_eps=0.01,
        moe_intermediate_size=24,
        n_routed_experts=6,
        num_experts_per_tok=2,
        routed_scaling_factor=1.7,
        swiglu_limit=0.8,
        rope_parameters={
            "main": {"rope_type": "default", "rope_theta": 10000.0, **SHARE},
            "compress": {**YARN, "attention_factor": 1.1, **SHARE},
        },
        **SHARE,
    ),
    spec=spec(
        "deepseek_v4",
        """
position: {kind: rope, theta: 10000.0, interleaved: true, trailing: true}
mixers:
  window:
    kind: compressed_attention
    num_heads: 4
    head_dim: 16
    qk_rope_head_dim: 8
    q_lora_rank: 32
    o_groups: 2
    o_lora_rank: 12
    sliding_window: 8
  hca:
    extends: window
    compress_ratio: 6
    position:
      kind: rope
      theta: 100.0
      interleaved: true
      trailing: true
      scaling:
        kind: yarn
        attention_factor: 1.1
        factor: 4.0
        original_max_position_embeddings: 32
        beta_fast: 1.0
        beta_slow: 0.3
  csa: {extends: hca, compress_ratio: 4, overlap: true, indexer: {num_heads: 16, head_dim: 12, topk: 3}}
ffns:
  moe:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    num_shared_experts: 1
    intermediate_size: 24
    expert: {kind: clamped_swiglu, limit: 0.8}
    router: {scoring_func: sqrtsoftplus, correction_bias: true, norm_topk_prob: true, routed_scaling_factor: 1.7}
  hash:
    extends: moe
    router: {kind: token_table, scoring_func: sqrtsoftplus, norm_topk_prob: true, routed_scaling_factor: 1.7}
stack:
  num_layers: 4
  block: {kind: hyper_connections, num_streams: 3, sinkhorn_iters: 3, eps: 0.01, norm_eps: 0.01}
  mixer: window csa hca csa
  ffn: hash moe*
""",
    ),
    twists=(
        ("norm: {kind: rms_norm, eps: 0.01}", "norm: {kind: rms_norm, eps: 0.0102}"),
        THETA,
        WIDER,
        NARROWER,
        YARN_TWISTS[0],
        ("        factor: 4.0", "        factor: 4.1"),
        ("attention_factor: 1.1", "attention_factor: 1.12"),
        ("theta: 10000.0, interleaved: true", "theta: 10000.0, interleaved: false"),
        ("topk: 3", "topk: 4"),
        ("limit: 0.8", "limit: 0.81"),
        ("sinkhorn_iters: 3", "sinkhorn_iters: 2"),
        ("eps: 0.01, norm_eps", "eps: 0.0102, norm_eps"),
        ("norm_eps: 0.01", "norm_eps: 0.0105"),
        ("correction_bias: true, norm_topk_prob: true", "correction_bias: true, norm_topk_prob: false"),
        ("kind: token_table, scoring_func: sqrtsoftplus", "kind: token_table, scoring_func: sigmoid"),
        ("router: {scoring_func: sqrtsoftplus", "router: {scoring_func: sigmoid"),
    ),
)

_MIXER = {
    "sinks": "attention.sinks",
    "q_a_proj.weight": "q_a_proj.weight",
    "q_a_norm.weight": "q_a_norm.weight",
    "q_b_proj.weight": "q_b_proj.weight",
    "kv_proj.weight": "kv_proj.weight",
    "kv_norm.weight": "kv_norm.weight",
    "o_a_proj.weight": "o_a_proj.weight",
    "o_b_proj.weight": "o_b_proj.weight",
    "compressor.indexer.q_b_proj.weight": "indexer.q_b_proj.weight",
    "compressor.indexer.scorer.weights_proj.weight": "indexer.weights_proj.weight",
    **{
        f"{there}.{old}": f"{here}.{new}"
        for there, here in (("compressor", "compressor"), ("compressor.indexer", "indexer"))
        for old, new in (
            ("kv_proj.weight", "kv_proj.weight"),
            ("gate_proj.weight", "gate_proj.weight"),
            ("position_bias", "entries.position_bias"),
            ("kv_norm.weight", "entries.norm_weight"),
        )
    },
}
_RENAMED = {
    **{f"self_attn.{old}": f"mixer.{new}" for old, new in _MIXER.items()},
    "mlp.gate.tid2eid": "ffn.router.table",
    **{
        f"{old}_hc.{part}": f"{new}_hc.{part}"
        for old, new in (("attn", "mixer"), ("ffn", "ffn"))
        for part in ("fn", "base", "scale")
    },
}
"""Weights of a layer that are called otherwise there, behind its number."""


def _in_a_layer(name: str, tensor: Any) -> dict[str, Any]:
    _, number, rest = name.removeprefix("model.").split(".", 2)
    return {f"layers.{number}.{_RENAMED[rest]}": tensor}


def _in_the_head(name: str, tensor: Any) -> dict[str, Any]:
    return {name.removeprefix("model.").replace("hc_head.hc_", "hc_head."): tensor}


LAYERS = {
    "deepseek_v4": (
        (rf"model\.layers\.\d+\.({'|'.join(map(re.escape, _RENAMED))})", _in_a_layer),
        (r"model\.hc_head\.hc_(fn|base|scale)", _in_the_head),
    )
}
"""Family -> rules for whole names, tried before those of all families."""
