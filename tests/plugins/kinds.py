"""Keys for every kind of the first party, so that ``check_kind`` can place it. A new kind adds its line here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    """YAML keys of a kind, sections of the spec around it, and the reason that ONNX refuses it, if it does."""

    keys: dict[str, Any] = field(default_factory=dict)
    around: dict[str, Any] = field(default_factory=dict)
    onnx: bool | str = True


def example(**keys: Any) -> Example:
    return Example(keys)


MLA = {
    "kind": "mla",
    "num_heads": 2,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}

PATCH = {"hidden_size": 16, "image_size": 12, "patch_size": 4, "num_channels": 2}

EXAMPLES: dict[str, Example] = {
    "mixer.gqa": example(num_heads=4, num_kv_heads=2, head_dim=8, qk_norm="head", qkv_bias=True),
    "mixer.mla": example(**{key: value for key, value in MLA.items() if key != "kind"}, q_lora_rank=10),
    "mixer.sparse_mla": example(
        **{key: value for key, value in MLA.items() if key != "kind"},
        q_lora_rank=10,
        indexer={"num_heads": 4, "head_dim": 8, "topk": 6},
    ),
    "mixer.nsa": example(
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        v_head_dim=6,
        compress_block_size=4,
        compress_stride=2,
        compress_intermediate_size=10,
        select_block_size=4,
        num_selected_blocks=4,
        num_local_blocks=1,
        sliding_window=5,
    ),
    "mixer.compressed_attention": example(
        num_heads=4,
        head_dim=8,
        q_lora_rank=10,
        o_groups=2,
        o_lora_rank=6,
        qk_rope_head_dim=4,
        sliding_window=5,
        compress_ratio=2,
        overlap=True,
        indexer={"num_heads": 4, "head_dim": 6, "topk": 3},
    ),
    "mixer.moba": example(num_heads=4, num_kv_heads=2, head_dim=8, block_size=4, topk=3),
    "mixer.general_attention": Example(
        {
            "num_heads": 2,
            "head_dim": 8,
            "v_head_dim": 5,
            "qkv_bias": True,
            "score": {"kind": "additive", "hidden_size": 6},
        },
        {"position": "none"},
    ),
    "mixer.gru": Example({"hidden_size": 8, "bidirectional": True, "bias": True}, {"encoder": {}}),
    "mixer.attention_gru": Example(
        {},
        {
            "mixers": {
                "reader": {"kind": "gru", "hidden_size": 5, "bidirectional": True},
                "writer": {
                    "kind": "attention_gru",
                    "hidden_size": 7,
                    "bias": True,
                    "score": {"kind": "additive", "hidden_size": 6},
                },
            },
            "position": "none",
            "encoder": {"block": "plain", "mixer": "reader", "ffn": "none"},
            "decoder": {"block": "plain", "mixer": "writer", "ffn": "none"},
            "head": {"kind": "maxout_lm", "hidden_size": 6},
        },
    ),
    "mixer.kda": example(num_heads=2, head_dim=8),
    "mixer.gated_deltanet": example(num_key_heads=2, num_value_heads=4, key_head_dim=8, value_head_dim=8),
    "mixer.gla": example(num_heads=2, key_head_dim=4, value_head_dim=8, gate_rank=3),
    "mixer.retnet": example(num_heads=2, key_head_dim=4, value_head_dim=8),
    "mixer.linear": example(num_heads=2, head_dim=8, qkv_bias=True, o_bias=True),
    "mixer.linformer": Example(
        {"num_heads": 2, "head_dim": 8, "projected_length": 5, "qkv_bias": True, "o_bias": True},
        {"position": "learned"},
    ),
    "mixer.performer": example(num_heads=2, head_dim=8, num_features=12, seed=1),
    "mixer.lightning": example(num_heads=2, head_dim=8),
    "mixer.mamba1": example(intermediate_size=24, state_size=4, dt_rank=3, inner_norm=True),
    "mixer.mamba2": example(num_heads=4, head_dim=8, state_size=6, n_groups=2, bias=True),
    "mixer.local_global": Example(
        {"num_heads": 4, "head_dim": 8, "attention_window": 6, "qkv_bias": True, "global_projections": True},
        {"position": "learned"},
    ),
    "ffn.mlp": example(intermediate_size=24, activation="gelu", bias=True),
    "ffn.swiglu": example(intermediate_size=24, bias=True),
    "ffn.geglu": example(intermediate_size=24),
    "ffn.clamped_swiglu": example(intermediate_size=24, limit=0.7, alpha=1.702, up_offset=1.0),
    "ffn.moe": example(
        num_experts=8,
        num_experts_per_tok=2,
        intermediate_size=12,
        num_shared_experts=1,
        router={"scoring_func": "softmax", "norm_topk_prob": True},
    ),
    "router.topk": example(scoring_func="sigmoid", norm_topk_prob=True, correction_bias=True, n_group=4, topk_group=2),
    "router.token_table": example(scoring_func="sqrtsoftplus", norm_topk_prob=True, routed_scaling_factor=1.5),
    "score.additive": example(hidden_size=6),
    "score.dot": example(),
    "score.scaled_dot": example(),
    "score.exp": example(),
    "score.linear": example(),
    "score.relu": example(),
    "score.elu_plus_one": example(),
    "norm.rms_norm": example(eps=1e-5, weight_offset=1.0),
    "norm.layer_norm": example(eps=1e-5),
    "norm.none": example(),
    "position.none": example(),
    "position.rope": example(theta=100.0, partial_rotary_factor=0.5),
    "position.sinusoidal": example(),
    "position.learned": example(),
    "position.alibi": example(),
    "position.relative_bias": example(num_buckets=8, max_distance=16),
    "position.disentangled": Example(
        {"max_relative_positions": 6},
        {
            "encoder": {},
            "mixers": {
                "mixer": {
                    "kind": "gqa",
                    "num_heads": 4,
                    "num_kv_heads": 4,
                    "head_dim": 8,
                    "qkv_bias": True,
                    "k_bias": False,
                }
            },
        },
    ),
    "scaling.linear": example(factor=4.0),
    "scaling.dynamic": example(factor=4.0, original_max_position_embeddings=64),
    "scaling.yarn": example(factor=4.0, original_max_position_embeddings=8),
    "scaling.longrope": example(
        factor=4.0,
        original_max_position_embeddings=16,
        short_factor=[1.0, 1.1, 1.2, 1.3],
        long_factor=[1.0, 1.5, 2.5, 4.0],
    ),
    "scaling.llama3": example(
        factor=8.0, original_max_position_embeddings=16, low_freq_factor=1.0, high_freq_factor=4.0
    ),
    "block.pre_norm": example(residual_multiplier=0.5),
    "block.post_norm": example(),
    "block.sandwich": example(),
    "block.output_norm": example(),
    "block.normed_residual": example(ffn_residual_multiplier=0.5, ffn_skip_multiplier=2.0),
    "block.hyper_connections": example(num_streams=3, sinkhorn_iters=4, eps=1e-3),
    "block.plain": example(),
    "block.parallel": example(shared_norm=True),
    "block.attention_residual": example(block_size=1),
    "head.lm": example(bias=True, final_logit_softcapping=3.0),
    "head.none": example(),
    "head.maxout_lm": example(hidden_size=6, pool_size=3, bias=True),
    "head.mlm": Example(
        {"activation": "gelu"},
        {
            "encoder": {},
            "embedding": {
                "hidden_size": 16,
                "embedding_size": 12,
                "tie_word_embeddings": True,
                "type_vocab_size": 3,
                "norm": True,
            },
        },
    ),
    "head.pooler": Example({}, {"encoder": {}}),
    "head.classifier": Example({"num_labels": 3, "pool": "mean", "activation": "gelu", "norm": True}, {"encoder": {}}),
    "embedding.token": example(hidden_size=16, tie_word_embeddings=True, scale="sqrt(hidden_size)"),
    "embedding.patch": Example(PATCH, {"encoder": {}, "tokenizer": "none", "position": "learned"}),
    "cache.full": Example({}, {"mixers": {"mixer": MLA}}),
    "cache.paged": example(block_size=8),
    # Longer than the texts: what it forgets changes results on purpose, and is judged by tests of its own.
    "cache.window": example(window=40, sink_tokens=2),
    "tokenizer.external": example(vocab_size=37),
    "tokenizer.none": Example(
        {},
        {
            "encoder": {},
            "embedding": {"kind": "patch", **PATCH},
            "position": "learned",
            "head": {"kind": "classifier", "num_labels": 5},
        },
    ),
    "tokenizer.bytes": example(),
    "tokenizer.char": example(vocab_size=37),
    "tokenizer.word": example(vocab_size=37),
    "tokenizer.bpe": example(vocab_size=300),
}
"""``family.name`` -> its example."""
