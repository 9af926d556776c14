"""Decoders with plain feed-forwards and layer norms: GPT-2, GPT-NeoX, BLOOM, Falcon."""

from __future__ import annotations

from tests.parity.family import EPS, ROPE, THETA, Family, layer_norm_config, spec

KEY_BIAS = (r"layers\.\d+\.mixer\.k_proj\.bias",)
"""Without a rotation a constant in all keys cancels in the softmax."""


def layer_normed(name: str, body: str, *, tied: bool = True, **keys: str) -> str:
    """A spec with layer norms; ``keys`` replace values of its first lines."""
    text = spec(name, body, tied=tied).replace("kind: rms_norm", "kind: layer_norm")
    for key, value in keys.items():
        old = {
            "hidden_size": "hidden_size: 64",
            "positions": "embeddings: 128",
            "norm": f"embeddings: {str(tied).lower()}",
        }
        assert text.count(old[key]) == 1, key
        text = text.replace(old[key], value)
    return text


GPT2 = Family(
    name="gpt2",
    model_class="GPT2LMHeadModel",
    config_class="GPT2Config",
    config={
        "vocab_size": 96,
        "n_positions": 48,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_inner": 96,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "layer_norm_epsilon": 0.01,
        "scale_attn_by_inverse_layer_idx": True,
    },
    final_norm="transformer.ln_f.weight",
    unseen=KEY_BIAS,
    spec=layer_normed(
        "gpt2",
        """
position: learned
mixers:
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 16, qkv_bias: true, o_bias: true,
         scale_attn_by_inverse_layer_idx: true}
ffns: {mlp: {kind: mlp, intermediate_size: 96, activation: gelu_tanh, bias: true}}
stack: {num_layers: 3, block: pre_norm, mixer: attn, ffn: mlp}
""",
        positions="embeddings: 48",
    ),
    twists=(
        EPS,
        ("scale_attn_by_inverse_layer_idx: true", "scale_attn_by_inverse_layer_idx: false"),
        ("activation: gelu_tanh", "activation: silu"),
    ),
)

GPT_NEOX = Family(
    name="gpt_neox",
    model_class="GPTNeoXForCausalLM",
    config_class="GPTNeoXConfig",
    config=layer_norm_config(
        num_attention_heads=4,
        intermediate_size=96,
        layer_norm_eps=0.01,
        use_parallel_residual=True,
        attention_bias=True,
        rope_parameters={**ROPE, "partial_rotary_factor": 0.25},
    ),
    final_norm="gpt_neox.final_layer_norm.weight",
    spec=layer_normed(
        "gpt_neox",
        """
position: {kind: rope, theta: 10000.0, partial_rotary_factor: 0.25}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 16, qkv_bias: true, o_bias: true}}
ffns: {mlp: {kind: mlp, intermediate_size: 96, activation: gelu, bias: true}}
stack: {num_layers: 3, block: {kind: parallel, shared_norm: false}, mixer: attn, ffn: mlp}
""",
        tied=False,
    ),
    twists=(
        EPS,
        ("theta: 10000.0", "theta: 9000.0"),
        ("partial_rotary_factor: 0.25", "partial_rotary_factor: 0.5"),
        ("{kind: parallel, shared_norm: false}", "pre_norm"),
    ),
)


def bloom(name: str, block: str) -> Family:
    """BLOOM, its residual the stream or what the norm made of it; six heads, whose slopes are of two series."""
    return Family(
        name=name,
        model_class="BloomForCausalLM",
        config_class="BloomConfig",
        config={
            "vocab_size": 96,
            "hidden_size": 48,
            "n_layer": 3,
            "n_head": 6,
            "seq_length": 128,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "layer_norm_epsilon": 0.01,
            "apply_residual_connection_post_layernorm": block == "normed_residual",
        },
        final_norm="transformer.ln_f.weight",
        unseen=KEY_BIAS,
        spec=layer_normed(
            name,
            f"""
position: alibi
mixers: {{attn: {{kind: gqa, num_heads: 6, num_kv_heads: 6, head_dim: 8, qkv_bias: true, o_bias: true}}}}
ffns: {{mlp: {{kind: mlp, intermediate_size: 192, activation: gelu_tanh, bias: true}}}}
stack: {{num_layers: 3, block: {block}, mixer: attn, ffn: mlp}}
""",
            hidden_size="hidden_size: 48",
            norm="embeddings: true, norm: true",
        ),
        twists=(
            EPS,
            ("position: alibi", "position: none"),
            ("position: alibi", "position: {kind: alibi, scaled: true}"),
            (f"block: {block}", "block: pre_norm" if block == "normed_residual" else "block: normed_residual"),
        ),
    )


BLOOM, BLOOM_NORMED = bloom("bloom", "pre_norm"), bloom("bloom_normed", "normed_residual")

_FALCON = layer_norm_config(num_attention_heads=4, ffn_hidden_size=96, layer_norm_epsilon=0.01)

FALCON = Family(
    name="falcon",
    model_class="FalconForCausalLM",
    config_class="FalconConfig",
    config={
        **_FALCON,
        "multi_query": True,
        "parallel_attn": True,
        "bias": True,
        "alibi": False,
        "rope_parameters": ROPE,
    },
    final_norm="transformer.ln_f.weight",
    spec=layer_normed(
        "falcon",
        """
position: {kind: rope, theta: 10000.0}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 1, head_dim: 16, qkv_bias: true, o_bias: true}}
ffns: {mlp: {kind: mlp, intermediate_size: 96, activation: gelu, bias: true}}
stack: {num_layers: 3, block: {kind: parallel, shared_norm: true}, mixer: attn, ffn: mlp}
""",
    ),
    twists=(EPS, THETA, ("shared_norm: true", "shared_norm: true, skip_multiplier: 0.99")),
)

FALCON_NEW_ARCH = Family(
    name="falcon_new_arch",
    model_class="FalconForCausalLM",
    config_class="FalconConfig",
    config={**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": False, "rope_parameters": ROPE},
    final_norm="transformer.ln_f.weight",
    spec=layer_normed(
        "falcon_new_arch",
        """
position: {kind: rope, theta: 10000.0}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16}}
ffns: {mlp: {kind: mlp, intermediate_size: 96, activation: gelu}}
stack: {num_layers: 3, block: {kind: parallel, shared_norm: false}, mixer: attn, ffn: mlp}
""",
    ),
    twists=(EPS, THETA, ("{kind: parallel, shared_norm: false}", "pre_norm")),
)

FALCON_ALIBI = Family(
    name="falcon_alibi",
    model_class="FalconForCausalLM",
    config_class="FalconConfig",
    # transformers rounds slopes and their products to bfloat16: four heads have powers of two, which that leaves as they
    # are, as it does their products with positions below 256. Its eager attention adds them twice.
    config={**_FALCON, "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
    attention="sdpa",
    final_norm="transformer.ln_f.weight",
    unseen=KEY_BIAS,
    spec=layer_normed(
        "falcon_alibi",
        """
position: {kind: alibi, scaled: true}
mixers: {attn: {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 16, qkv_bias: true, o_bias: true}}
ffns: {mlp: {kind: mlp, intermediate_size: 96, activation: gelu, bias: true}}
stack: {num_layers: 3, block: pre_norm, mixer: attn, ffn: mlp}
""",
    ),
    twists=(EPS, ("scaled: true", "scaled: false"), ("{kind: alibi, scaled: true}", "none")),
)
