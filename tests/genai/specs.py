"""Tiny architectures that onnxruntime-genai can run, one for each thing that its conventions touch."""

from __future__ import annotations

VOCABULARY = 61
_HEAD = """
spec_version: 1
name: NAME
tokenizer: {tokenizer}
norm: {{kind: rms_norm, eps: 1e-5}}
max_position_embeddings: 40
"""
_ROPE = "position: {{kind: rope, theta: 10000.0}}\n"
_OPEN = "embedding: {{hidden_size: 32, tie_word_embeddings: false}}\n"
_TIED = "embedding: {{hidden_size: 32, tie_word_embeddings: true, scale: 0.1}}\n"
_MLP = "ffns:\n  mlp: {{kind: swiglu, intermediate_size: 48}}\n"
_STACK = "stack: {{num_layers: LAYERS, block: pre_norm, mixer: MIXERS, ffn: mlp}}\n"


def _spec(name: str, body: str, mixers: str, ffns: str = _MLP) -> str:
    stack = _STACK.replace("LAYERS", str(len(mixers.split()))).replace("MIXERS", mixers)
    return _HEAD.replace("NAME", name.replace(" ", "-")) + body + ffns + stack


SPECS = {
    "llama": _spec(
        "llama",
        _ROPE + _OPEN + "mixers:\n  gqa: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}\n",
        "gqa gqa",
    ),
    "tied": _spec(
        "tied",
        _ROPE + _TIED + "mixers:\n  gqa: {{kind: gqa, num_heads: 4, num_kv_heads: 1, head_dim: 8, qkv_bias: true}}\n",
        "gqa gqa",
    ),
    "normed queries": _spec(
        "normed queries",
        _ROPE + _TIED + "mixers:\n  gqa: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, qk_norm: head}}\n",
        "gqa gqa",
    ),
    "windows and sinks": _spec(
        "windows and sinks",
        _ROPE
        + _OPEN
        + "mixers:\n"
        + "  near: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, sink_logits: true, sliding_window: 5}}\n"
        + "  far: {{kind: gqa, num_heads: 2, num_kv_heads: 1, head_dim: 16, sink_logits: true}}\n",
        "near far near",
    ),
    "odd heads": _spec(
        # No multiple of 8, so GroupQueryAttention refuses it; and slopes, which no fused kernel takes.
        "odd heads",
        _ROPE
        + _OPEN
        + "mixers:\n"
        + "  odd: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 12}}\n"
        + "  sloping: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, position: alibi}}\n",
        "odd sloping",
    ),
    "learned positions": _spec(
        "learned positions",
        "position: learned\n" + _OPEN + "mixers:\n  gqa: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}\n",
        "gqa gqa",
    ),
    "mixture": _spec(
        "mixture",
        _ROPE + _OPEN + "mixers:\n  gqa: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}\n",
        "gqa gqa",
        "ffns:\n"
        "  mlp: {{kind: moe, num_experts: 6, num_experts_per_tok: 2, intermediate_size: 16, "
        "router: {{scoring_func: softmax, norm_topk_prob: true}}}}\n",
    ),
    "gated deltanet hybrid": _spec(
        "gated deltanet hybrid",
        "position: {{kind: rope, theta: 10000.0, partial_rotary_factor: 0.5}}\n"
        + _TIED
        + "mixers:\n"
        + "  gdn: {{kind: gated_deltanet, num_key_heads: 2, num_value_heads: 4, key_head_dim: 16, value_head_dim: 8}}\n"
        + "  gqa: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, qk_norm: head, output_gate: true}}\n",
        "gdn gdn gdn gqa",
    ),
    "kda hybrid": _spec(
        "kda hybrid",
        "position: none\n"
        + _OPEN
        + "mixers:\n"
        + "  kda: {{kind: kda, num_heads: 2, head_dim: 16, conv_kernel: 4}}\n"
        + "  gqa: {{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16}}\n",
        "kda kda kda gqa",
    ),
    "kda alone": _spec(
        "kda alone",
        "position: none\n" + _OPEN + "mixers:\n  kda: {{kind: kda, num_heads: 2, head_dim: 16, conv_kernel: 4}}\n",
        "kda kda",
    ),
}
