"""A residual layout that no other family has: OPT's norms after the sum."""

from __future__ import annotations

from tests.parity.family import Family, spec

_OPT_CONFIG = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "ffn_dim": 96,
    "max_position_embeddings": 48,
    "num_attention_heads": 4,
    "word_embed_proj_dim": 64,
    "do_layer_norm_before": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

OPT = Family(
    name="opt",
    model_class="OPTForCausalLM",
    config_class="OPTConfig",
    config=_OPT_CONFIG,
    # There is no norm after the last layer's own.
    final_norm="model.decoder.layers.2.final_layer_norm.weight",
    # Without a rotation a constant in all keys cancels in the softmax.
    unseen=(r"layers\.\d+\.mixer\.k_proj\.bias",),
    tolerance=2.6e-4,
    spec=spec(
        "opt",
        """
position: {kind: learned, offset: 2}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 16, qkv_bias: true, o_bias: true}}
ffns: {mlp: {kind: mlp, intermediate_size: 96, activation: relu, bias: true}}
stack: {num_layers: 3, block: post_norm, mixer: attn, ffn: mlp}
""",
        tied=True,
    )
    .replace("norm: {kind: rms_norm, eps: 0.01}", "norm: {kind: layer_norm, eps: 1e-5}")
    .replace("embeddings: 128", "embeddings: 48"),
    twists=(
        ("eps: 1e-5", "eps: 1e-2"),
        ("activation: relu", "activation: gelu"),
        ("block: post_norm", "block: {kind: post_norm, residual_multiplier: 0.99}"),
        ("block: post_norm", "block: {kind: post_norm, skip_multiplier: 0.99}"),
    ),
)

OPT_PRENORM = Family(
    name="opt_prenorm",
    model_class="OPTForCausalLM",
    config_class="OPTConfig",
    # A table narrower than the model has projections at both ends.
    config={**_OPT_CONFIG, "do_layer_norm_before": True, "word_embed_proj_dim": 40},
    final_norm="model.decoder.final_layer_norm.weight",
    unseen=(r"layers\.\d+\.mixer\.k_proj\.bias",),
    tolerance=2.6e-4,
    spec=OPT.spec.replace("name: tiny-opt", "name: tiny-opt-prenorm")
    .replace("block: post_norm", "block: pre_norm")
    .replace("hidden_size: 64,", "hidden_size: 64, embedding_size: 40,"),
    twists=(
        ("eps: 1e-5", "eps: 1e-2"),
        ("activation: relu", "activation: gelu"),
        ("block: pre_norm", "block: {kind: pre_norm, residual_multiplier: 0.99}"),
    ),
)
