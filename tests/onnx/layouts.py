"""Tiny architectures of every residual layout, half-layers, norm and plain feed-forward; ``conftest.py`` has the others."""

from __future__ import annotations

_EMBEDDING = "embedding: {hidden_size: 32, tie_word_embeddings: false}\n"
_MIXERS = """
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
  post: {extends: gqa, block: post_norm}
  sandwich: {extends: gqa, block: {kind: sandwich, residual_multiplier: 0.5}}
  after: {extends: gqa, block: {kind: output_norm, skip_multiplier: 0.75}}
  normed: {extends: gqa, block: {kind: normed_residual, residual_multiplier: 0.5, skip_multiplier: 1/sqrt(2)}}
  one: {extends: gqa, block: {kind: parallel, shared_norm: true}}
  two: {extends: gqa, block: {kind: parallel, shared_norm: false, residual_multiplier: 0.5}}
"""
_STACK = "stack: {num_layers: 7, block: pre_norm, mixer: gqa post sandwich after normed one two, ffn: %s}\n"
_MLP = "{kind: mlp, intermediate_size: 48, activation: %s, bias: %s}"
_ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu2", "silu", "sigmoid", "tanh")

LAYOUTS = {
    "compressed": """
position: {kind: rope, theta: 10000.0, interleaved: true, trailing: true}
embedding: {hidden_size: 32, tie_word_embeddings: false}
mixers:
  window:
    {kind: compressed_attention, num_heads: 4, head_dim: 16, q_lora_rank: 12, o_groups: 2, o_lora_rank: 8, qk_rope_head_dim: 8,
     sliding_window: 5}
  hca: {extends: window, compress_ratio: 6}
  csa: {extends: window, compress_ratio: 2, overlap: true, indexer: {num_heads: 4, head_dim: 8, topk: 3}}
  plain: {extends: csa, compress_ratio: 3, overlap: false, sink_logits: false}
ffns:
  moe:
    kind: moe
    num_experts: 4
    num_experts_per_tok: 2
    intermediate_size: 16
    num_shared_experts: 1
    expert: {kind: clamped_swiglu, limit: 7.0}
    router: {scoring_func: sqrtsoftplus, correction_bias: true, norm_topk_prob: true, routed_scaling_factor: 1.5}
  hash: {extends: moe, router: {kind: token_table, scoring_func: sqrtsoftplus, norm_topk_prob: true}}
stack:
  num_layers: 4
  block: {kind: hyper_connections, num_streams: 3, sinkhorn_iters: 4}
  mixer: window hca csa plain
  ffn: hash*2 moe*2
""",
    "chosen blocks": """
position: {kind: rope, theta: 10000.0}
embedding: {hidden_size: 32, tie_word_embeddings: false}
mixers:
  nsa:
    {kind: nsa, num_heads: 4, num_kv_heads: 2, head_dim: 8, compress_block_size: 4, compress_stride: 2, select_block_size: 4,
     compress_intermediate_size: 12, num_selected_blocks: 3, num_local_blocks: 1, sliding_window: 5}
  deep: {extends: nsa, v_head_dim: 16, compress_intermediate_size: 20, compress_block_size: 6, select_block_size: 6}
  moba: {kind: moba, num_heads: 4, num_kv_heads: 2, head_dim: 8, block_size: 4, topk: 3}
  biased: {kind: moba, num_heads: 3, num_kv_heads: 3, head_dim: 8, block_size: 5, topk: 2, qkv_bias: true}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 4, block: pre_norm, mixer: nsa moba deep biased, ffn: mlp}
""",
    "granite-hybrid": """
position: none
embedding: {hidden_size: 32, tie_word_embeddings: true, scale: 3.0}
mixers:
  mamba: {kind: mamba2, num_heads: 4, head_dim: 8, state_size: 16, n_groups: 2, bias: true}
  alone:
    {kind: mamba2, num_heads: 3, head_dim: 12, state_size: 8, conv_kernel: 2, conv_bias: false, time_step_limit: [0.01, 0.05]}
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, softmax_scale: 0.3}
ffns:
  mlp: {kind: mlp, intermediate_size: 48, activation: relu2}
stack: {num_layers: 5, block: {kind: pre_norm, residual_multiplier: 0.5}, layers: mamba mlp alone attn+mlp mamba}
head: {kind: lm, logit_scale: 1/2}
cache: {policy: full, state_dtype: float32}
""",
    "minimax": """
position: {kind: rope, theta: 10000.0}
embedding: {hidden_size: 32, tie_word_embeddings: false}
mixers:
  lightning: {kind: lightning, num_heads: 3, head_dim: 16}
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack:
  num_layers: 4
  block: {kind: normed_residual, skip_multiplier: 0.75, ffn_residual_multiplier: 0.5}
  mixer: lightning*2 attn lightning
  ffn: mlp
cache: {policy: full, state_dtype: bfloat16}
""",
    "jamba": """
position: none
embedding: {hidden_size: 32, tie_word_embeddings: false}
mixers:
  mamba: {kind: mamba1, intermediate_size: 48, state_size: 8, dt_rank: 3, inner_norm: true}
  alone: {kind: mamba1, intermediate_size: 24, state_size: 4, dt_rank: 2, conv_kernel: 2, bias: true, conv_bias: false}
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 4, block: pre_norm, mixer: mamba alone attn mamba, ffn: mlp}
""",
    "layouts": "position: {kind: rope, theta: 10000.0}\n"
    + _EMBEDDING
    + _MIXERS
    + "ffns: {exact: {kind: geglu, intermediate_size: 48}, tanh: "
    + "{kind: geglu, intermediate_size: 48, activation: gelu_tanh, bias: true}}\n"
    + _STACK % "exact*4 tanh*3",
    "layer norms": "position: {kind: rope, theta: 10000.0}\n"
    + _EMBEDDING
    + "norm: {kind: layer_norm, eps: 1e-5}\n"
    + _MIXERS.replace("head_dim: 8}", "head_dim: 8, qk_norm: head}", 1)
    + "ffns:\n"
    + "".join(
        f"  act_{name}: {_MLP % (name, 'true' if number % 2 else 'false')}\n"
        for number, name in enumerate(_ACTIVATIONS)
    )
    + _STACK % " ".join(f"act_{name}" for name in _ACTIVATIONS),
    "norms without biases": "position: {kind: rope, theta: 10000.0}\n"
    + _EMBEDDING
    + "norm: {kind: layer_norm, eps: 1e-5, bias: false}\n"
    + _MIXERS.replace("head_dim: 8}", "head_dim: 8, qk_norm: width}", 1)
    + f"ffns: {{soft: {_MLP % ('softplus', 'true')}}}\n"
    + _STACK % "soft",
    "no norms": "position: {kind: rope, theta: 10000.0}\n"
    + _EMBEDDING
    + "norm: none\n"
    + _MIXERS.partition("  post:")[0]
    + f"ffns: {{relu: {_MLP % ('relu', 'false')}}}\n"
    + "stack: {num_layers: 2, block: {kind: pre_norm, residual_multiplier: 0.5}, mixer: gqa, ffn: relu}\n",
    "ropes by length": _EMBEDDING
    + """
position:
  kind: rope
  theta: 10000.0
  scaling: {kind: dynamic, factor: 4.0, original_max_position_embeddings: 16}
mixers:
  dynamic: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
  longrope:
    extends: dynamic
    position:
      kind: rope
      theta: 10000.0
      scaling:
        kind: longrope
        factor: 4.0
        original_max_position_embeddings: 16
        short_factor: [1.0, 1.1, 1.3, 1.7]
        long_factor: [1.0, 1.5, 2.0, 4.0]
ffns: {mlp: {kind: swiglu, intermediate_size: 48}}
stack: {num_layers: 2, block: pre_norm, mixer: dynamic longrope, ffn: mlp}
""",
    "plain experts": "position: {kind: rope, theta: 10000.0}\n"
    + _EMBEDDING
    + "mixers: {gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}}\nffns:\n"
    + "".join(
        f"  {name}: {{kind: moe, num_experts: 6, num_experts_per_tok: 2, intermediate_size: 16, num_shared_experts: 1, "
        f"expert: {{kind: mlp, activation: {name}, bias: {bias}}}, "
        f"router: {{scoring_func: sigmoid, norm_topk_prob: true, weight_on: {weighed}}}}}\n"
        for name, bias, weighed in (
            ("relu", "true", "output"),
            ("silu", "false", "input"),
            ("gelu", "true", "output"),
            ("relu2", "true", "output"),
            ("gelu_tanh", "false", "input"),
        )
    )
    + "stack: {num_layers: 5, block: pre_norm, mixer: gqa, ffn: relu silu gelu relu2 gelu_tanh}\n",
}

CHOOSING = {
    "indexer": _EMBEDDING
    + """
position: {kind: rope, theta: 10000.0, interleaved: true}
mixers:
  few:
    {kind: sparse_mla, num_heads: 2, q_lora_rank: 24, kv_lora_rank: 16, qk_nope_head_dim: 12, qk_rope_head_dim: 4,
     v_head_dim: 12, indexer: {num_heads: 8, head_dim: 8, topk: 5}}
  all: {extends: few, bias: true, output_gate: true, indexer: {num_heads: 2, head_dim: 4, topk: 64}}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 2, block: pre_norm, mixer: few all, ffn: mlp}
""",
}
"""What half precision may choose otherwise, so that no bound of rounding holds for it."""
