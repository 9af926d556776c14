"""Dense decoders with grouped-query attention."""

from __future__ import annotations

from tests.parity.family import EPS, GQA, NARROWER, ROPE, THETA, WIDER, Family, config, spec

LLAMA = Family(
    name="llama",
    model_class="LlamaForCausalLM",
    config_class="LlamaConfig",
    config=config(**GQA, rope_parameters=ROPE),
    spec=spec(
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
    config=config(**GQA, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    spec=spec(
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
    config=config(
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
    spec=spec(
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
    config=config(**GQA, sliding_window=8, rope_parameters=ROPE),
    spec=spec(
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

GRANITE = Family(
    name="granite",
    model_class="GraniteForCausalLM",
    config_class="GraniteConfig",
    # The width of a head is no key of this family: it is hidden_size / num_heads.
    config=config(
        **{key: value for key, value in GQA.items() if key != "head_dim"},
        attention_bias=True,
        mlp_bias=True,
        embedding_multiplier=0.75,
        logits_scaling=4.0,
        residual_multiplier=0.5,
        attention_multiplier=0.125,
        rope_parameters=ROPE,
    ),
    # Its logits are a quarter of the others', and so is their rounding.
    tolerance=1.5e-5,
    spec=spec(
        "granite",
        """
position: {kind: rope, theta: 10000.0}
mixers:
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, qkv_bias: true, o_bias: true, softmax_scale: 0.125}
ffns: {mlp: {kind: swiglu, intermediate_size: 96, bias: true}}
stack: {num_layers: 3, block: {kind: pre_norm, residual_multiplier: 0.5}, mixer: attn, ffn: mlp}
head: {kind: lm, logit_scale: 1/4}
""",
    ).replace("tie_word_embeddings: false", "tie_word_embeddings: false, scale: 0.75"),
    twists=(
        EPS,
        THETA,
        ("scale: 0.75", "scale: 0.76"),
        ("softmax_scale: 0.125", "softmax_scale: 0.13"),
        ("residual_multiplier: 0.5", "residual_multiplier: 0.51"),
        ("logit_scale: 1/4", "logit_scale: 1/5"),
    ),
)

QWEN3 = Family(
    name="qwen3",
    model_class="Qwen3ForCausalLM",
    config_class="Qwen3Config",
    config=config(
        **GQA,
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=2,
        attention_bias=True,
        rope_parameters=ROPE,
    ),
    spec=spec(
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
