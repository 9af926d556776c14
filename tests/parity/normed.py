"""Decoders whose norms, positions or layouts are not Llama's."""

from __future__ import annotations

from tests.parity.family import EPS, GQA, NARROWER, ROPE, THETA, WIDER, Family, config, layer_norm_config, spec

SLIDING, WHOLE = "sliding_attention", "full_attention"

QWEN2 = Family(
    name="qwen2",
    model_class="Qwen2ForCausalLM",
    config_class="Qwen2Config",
    # The width of a head is no key of this family: it is hidden_size / num_heads.
    config=config(
        **{key: value for key, value in GQA.items() if key != "head_dim"},
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=2,
        tie_word_embeddings=True,
        rope_parameters=ROPE,
    ),
    # Tied logits are about four times as large as the others', and so is their rounding.
    tolerance=2.6e-4,
    spec=spec(
        "qwen2",
        """
position: {kind: rope, theta: 10000.0}
mixers:
  full: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, qkv_bias: true}
  sliding: {extends: full, sliding_window: 8}
ffns: {mlp: {kind: swiglu, intermediate_size: 96}}
stack: {num_layers: 4, block: pre_norm, mixer: full*2 sliding*2, ffn: mlp}
""",
        tied=True,
    ),
    twists=(EPS, THETA, NARROWER, WIDER, ("mixer: full*2 sliding*2", "mixer: sliding*2 full*2")),
)

OLMO2 = Family(
    name="olmo2",
    model_class="Olmo2ForCausalLM",
    config_class="Olmo2Config",
    config=config(**GQA, attention_bias=True, rope_parameters=ROPE),
    spec=spec(
        "olmo2",
        """
position: {kind: rope, theta: 10000.0}
mixers:
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qk_norm: width, qkv_bias: true, o_bias: true}
ffns: {mlp: {kind: swiglu, intermediate_size: 96}}
stack: {num_layers: 3, block: output_norm, mixer: attn, ffn: mlp}
""",
    ),
    twists=(
        EPS,
        THETA,
        ("block: output_norm", "block: {kind: output_norm, residual_multiplier: 0.99}"),
        ("block: output_norm", "block: {kind: output_norm, skip_multiplier: 0.99}"),
        ("qk_norm: width", "qk_norm: width, norm: {kind: rms_norm, eps: 0.02}"),
    ),
)

GEMMA2 = Family(
    name="gemma2",
    model_class="Gemma2ForCausalLM",
    config_class="Gemma2Config",
    config=config(
        **GQA,
        num_hidden_layers=4,
        sliding_window=8,
        query_pre_attn_scalar=20,
        final_logit_softcapping=3.0,
        attn_logit_softcapping=2.0,
        rope_parameters=ROPE,
    ),
    spec=spec(
        "gemma2",
        """
position: {kind: rope, theta: 10000.0}
mixers:
  global: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, softmax_scale: 1/sqrt(20), attn_logit_softcapping: 2.0}
  local: {extends: global, sliding_window: 8}
ffns: {mlp: {kind: geglu, intermediate_size: 96, activation: gelu_tanh}}
stack: {num_layers: 4, block: sandwich, mixer: (local global)*, ffn: mlp}
head: {kind: lm, final_logit_softcapping: 3.0}
""",
        tied=True,
    )
    .replace("tie_word_embeddings: true", "tie_word_embeddings: true, scale: sqrt(hidden_size)")
    .replace("eps: 0.01", "eps: 0.01, weight_offset: 1.0"),
    twists=(
        EPS,
        THETA,
        NARROWER,
        WIDER,
        ("scale: sqrt(hidden_size)", "scale: sqrt(63)"),
        ("weight_offset: 1.0", "weight_offset: 0.99"),
        ("1/sqrt(20)", "1/sqrt(21)"),
        ("attn_logit_softcapping: 2.0", "attn_logit_softcapping: 2.1"),
        ("final_logit_softcapping: 3.0", "final_logit_softcapping: 3.1"),
        ("activation: gelu_tanh", "activation: gelu"),
        ("mixer: (local global)*", "mixer: (global local)*"),
        ("block: sandwich", "block: {kind: sandwich, residual_multiplier: 0.99}"),
        ("block: sandwich", "block: {kind: sandwich, skip_multiplier: 0.99}"),
    ),
)

GEMMA3 = Family(
    name="gemma3_text",
    model_class="Gemma3ForCausalLM",
    config_class="Gemma3TextConfig",
    config=config(
        **GQA,
        num_hidden_layers=4,
        sliding_window=8,
        query_pre_attn_scalar=20,
        layer_types=[SLIDING, SLIDING, WHOLE, SLIDING],
        rope_parameters={
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            WHOLE: {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0},
        },
    ),
    tolerance=1e-4,
    spec=spec(
        "gemma3_text",
        """
position: {kind: rope, theta: 100000.0, scaling: {kind: linear, factor: 4.0}}
mixers:
  global: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, qk_norm: head, softmax_scale: 1/sqrt(20)}
  local: {extends: global, sliding_window: 8, position: {kind: rope, theta: 10000.0}}
ffns: {mlp: {kind: geglu, intermediate_size: 96, activation: gelu_tanh}}
stack: {num_layers: 4, block: sandwich, mixer: local*2 global local, ffn: mlp}
""",
        tied=True,
    )
    .replace("tie_word_embeddings: true", "tie_word_embeddings: true, scale: sqrt(hidden_size)")
    .replace("eps: 0.01", "eps: 0.01, weight_offset: 1.0"),
    twists=(
        EPS,
        ("theta: 100000.0", "theta: 90000.0"),
        ("theta: 10000.0", "theta: 9900.0"),
        ("factor: 4.0", "factor: 4.1"),
        NARROWER,
        WIDER,
        ("1/sqrt(20)", "1/sqrt(21)"),
        ("weight_offset: 1.0", "weight_offset: 0.99"),
        ("mixer: local*2 global local", "mixer: local global local*2"),
    ),
)

COHERE2 = Family(
    name="cohere2",
    model_class="Cohere2ForCausalLM",
    config_class="Cohere2Config",
    config=layer_norm_config(
        **GQA,
        num_hidden_layers=4,
        layer_norm_eps=0.01,
        logit_scale=0.25,
        sliding_window=8,
        layer_types=[SLIDING, SLIDING, WHOLE, SLIDING],
        rope_parameters=ROPE,
        tie_word_embeddings=True,
    ),
    spec=spec(
        "cohere2",
        """
position: {kind: rope, theta: 10000.0, interleaved: true}
mixers:
  global: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24, position: none}
  local: {extends: global, sliding_window: 8, position: {kind: rope, theta: 10000.0, interleaved: true}}
ffns: {mlp: {kind: swiglu, intermediate_size: 96}}
stack:
  num_layers: 4
  block: {kind: parallel, shared_norm: true}
  mixer: local*2 global local
  ffn: mlp
head: {kind: lm, logit_scale: 0.25}
""",
        tied=True,
    ).replace("norm: {kind: rms_norm, eps: 0.01}", "norm: {kind: layer_norm, eps: 0.01, bias: false}"),
    twists=(
        EPS,
        NARROWER,
        WIDER,
        ("position: none", "position: {kind: rope, theta: 10000.0}"),
        ("logit_scale: 0.25", "logit_scale: 0.26"),
        ("kind: layer_norm, eps: 0.01, bias: false", "kind: rms_norm, eps: 0.01"),
        (
            "sliding_window: 8, position: {kind: rope, theta: 10000.0",
            "sliding_window: 8, position: {kind: rope, theta: 9900.0",
        ),
        ("shared_norm: true", "shared_norm: true, residual_multiplier: 0.99"),
    ),
)

LLAMA4 = Family(
    name="llama4",
    model_class="Llama4ForCausalLM",
    config_class="Llama4TextConfig",
    config=config(
        **GQA,
        intermediate_size_mlp=96,
        num_hidden_layers=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        attention_chunk_size=8,
        no_rope_layers=[1, 1, 0, 1],
        floor_scale=4,
        attn_scale=0.5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 16,
        },
    ),
    spec=spec(
        "llama4",
        """
position:
  kind: rope
  theta: 10000.0
  interleaved: true
  scaling: {kind: llama3, factor: 4.0, low_freq_factor: 1.0, high_freq_factor: 1.0, original_max_position_embeddings: 16}
mixers:
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 24}
  chunked: {extends: attn, qk_norm: unit, attention_chunk_size: 8}
  nope: {extends: attn, position: none, query_temperature: {scale: 0.5, floor: 4}}
ffns:
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    num_shared_experts: 1
    intermediate_size: 96
    router: {scoring_func: sigmoid, norm_topk_prob: false, weight_on: input}
stack: {num_layers: 4, block: pre_norm, mixer: chunked*2 nope chunked, ffn: moe}
""",
    ),
    twists=(
        EPS,
        THETA,
        ("{kind: llama3, factor: 4.0", "{kind: llama3, factor: 4.1"),
        ("interleaved: true", "interleaved: false"),
        ("qk_norm: unit", "qk_norm: none"),
        ("attention_chunk_size: 8", "attention_chunk_size: 9"),
        ("scale: 0.5", "scale: 0.51"),
        ("floor: 4", "floor: 5"),
        ("weight_on: input", "weight_on: output"),
        ("norm_topk_prob: false", "norm_topk_prob: true"),
        ("mixer: chunked*2 nope chunked", "mixer: chunked nope chunked*2"),
    ),
)


def phi3(name: str, original: int, long: bool) -> Family:
    """Phi-3 with two lists of divisors; which holds depends on the trained length, ``original``, and the run's.

    transformers chooses in each call by its longest position, archc once by ``max_position_embeddings``. The two agree
    where every text of the tests is longer than ``original``, or none is: 32 tokens at most, 15 at least.
    """
    lists = {"short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 1.5, 2.0, 4.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "factor": 4.0}
    mixer, window = ("attn", "") if long else ("local", ", sliding_window: 8")
    return Family(
        name=name,
        model_class="Phi3ForCausalLM",
        config_class="Phi3Config",
        # The width of a head is no key of this family: it is hidden_size / num_heads.
        config=config(
            **{key: value for key, value in GQA.items() if key != "head_dim"},
            max_position_embeddings=128 if long else original,
            sliding_window=None if long else 8,
            original_max_position_embeddings=original,
            rope_parameters={**rope, "original_max_position_embeddings": original, **lists},
        ),
        spec=spec(
            name,
            f"""
position:
  kind: rope
  theta: 10000.0
  partial_rotary_factor: 0.5
  scaling:
    kind: longrope
    factor: 4.0
    original_max_position_embeddings: {original}
    short_factor: [1.0, 1.1, 1.3, 1.7]
    long_factor: [1.0, 1.5, 2.0, 4.0]
mixers: {{{mixer}: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16{window}}}}}
ffns: {{mlp: {{kind: swiglu, intermediate_size: 96}}}}
stack: {{num_layers: 3, block: pre_norm, mixer: {mixer}, ffn: mlp}}
""",
        ).replace("max_position_embeddings: 128\n", f"max_position_embeddings: {128 if long else original}\n", 1),
        twists=(
            EPS,
            THETA,
            ("partial_rotary_factor: 0.5", "partial_rotary_factor: 0.5\n  trailing: true"),
            ("    factor: 4.0", "    factor: 4.1"),
            (f"original_max_position_embeddings: {original}", f"original_max_position_embeddings: {original - 1}"),
            ("2.0, 4.0]", "2.1, 4.0]") if long else ("1.3, 1.7]", "1.4, 1.7]"),
            *(() if long else (NARROWER, WIDER)),
        ),
    )


PHI3, PHI3_LONG = phi3("phi3", 32, long=False), phi3("phi3_long", 12, long=True)
