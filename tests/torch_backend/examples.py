"""Small specs of every kind and every variant of it, with weights that make their differences visible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import archc
from archc.spec.schema import Spec
from archc.torch_backend.build import graph_of

TINY = ("tiny-llama", "tiny-kimi-linear", "tiny-deepseek-v3", "tiny-gpt-oss", "tiny-qwen3-next")
"""The shipped specs that are small enough to run."""

GQA = "kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16"
MLA = "kind: mla, num_heads: 2, kv_lora_rank: 24, qk_nope_head_dim: 16, qk_rope_head_dim: 8, v_head_dim: 12"
SPARSE_MLA = MLA.replace("mla", "sparse_mla") + ", q_lora_rank: 20, indexer: {num_heads: 16, head_dim: 12, topk: 7}"
NSA = (
    "kind: nsa, num_heads: 4, num_kv_heads: 2, head_dim: 16, compress_block_size: 4, compress_stride: 2, select_block_size: 4, "
    "compress_intermediate_size: 20, num_selected_blocks: 4, sliding_window: 5"
)
COMPRESSED = (
    "kind: compressed_attention, num_heads: 4, head_dim: 16, q_lora_rank: 20, o_groups: 2, o_lora_rank: 12, qk_rope_head_dim: 8, "
    "sliding_window: 5"
)
KDA = "kind: kda, num_heads: 2, head_dim: 16"
GATED_DELTANET = "kind: gated_deltanet, num_key_heads: 2, num_value_heads: 4, key_head_dim: 16, value_head_dim: 12"
MAMBA2 = "kind: mamba2, num_heads: 4, head_dim: 12, state_size: 16"
SWIGLU = "kind: swiglu, intermediate_size: 48"
MOE = "kind: moe, num_experts: 8, num_experts_per_tok: 2, intermediate_size: 24"

MIXERS = {
    "gqa": f"{{{GQA}}}",
    "mha": "{kind: gqa, num_heads: 2, num_kv_heads: 2, head_dim: 16, qkv_bias: true, o_bias: true}",
    "mqa": "{kind: gqa, num_heads: 4, num_kv_heads: 1, head_dim: 16, output_gate: true}",
    "gqa qk norm": f"{{{GQA}, qk_norm: head}}",
    "gqa unit norm": f"{{{GQA}, qk_norm: unit, query_temperature: {{scale: 0.1, floor: 4}}}}",
    "gqa short window": f"{{{GQA}, sliding_window: 5}}",
    "gqa window of 1": f"{{{GQA}, sliding_window: 1}}",
    "gqa long window": f"{{{GQA}, sliding_window: 200}}",
    "gqa short chunk": f"{{{GQA}, attention_chunk_size: 6}}",
    "gqa long chunk": f"{{{GQA}, attention_chunk_size: 200}}",
    "gqa sinks": f"{{{GQA}, sink_logits: true}}",
    "gqa sinks in a window": f"{{{GQA}, sink_logits: true, sliding_window: 5}}",
    "gqa sinks in a chunk": f"{{{GQA}, sink_logits: true, attention_chunk_size: 6}}",
    "gqa soft cap": f"{{{GQA}, attn_logit_softcapping: 2.0}}",
    "gqa soft cap in a window": f"{{{GQA}, attn_logit_softcapping: 2.0, sliding_window: 5}}",
    "gqa forgetting": f"{{{GQA}, cache: {{policy: window, window: 4, sink_tokens: 2}}}}",
    "mla forgetting": f"{{{MLA}, cache: {{policy: window, window: 4, sink_tokens: 2}}}}",
    "gqa slopes": f"{{{GQA}, position: alibi}}",
    "gqa slopes in a window": f"{{{GQA}, position: alibi, sliding_window: 5}}",
    "gqa slopes and sinks in a chunk": f"{{{GQA}, position: alibi, attention_chunk_size: 6, sink_logits: true}}",
    "mla": f"{{{MLA}}}",
    "mla q lora": f"{{{MLA}, q_lora_rank: 20, bias: true, output_gate: true}}",
    "sparse_mla": f"{{{SPARSE_MLA}}}",
    "nsa": f"{{{NSA}}}",
    "nsa of one local block": f"{{{NSA}, v_head_dim: 12, num_initial_blocks: 0, num_local_blocks: 1}}",
    "moba": "{kind: moba, num_heads: 4, num_kv_heads: 2, head_dim: 16, block_size: 4, topk: 3, qkv_bias: true}",
    "compressed_attention": f"{{{COMPRESSED}}}",
    "compressed_attention hca": f"{{{COMPRESSED}, compress_ratio: 6, sink_logits: false}}",
    "compressed_attention csa": f"{{{COMPRESSED}, compress_ratio: 3, overlap: true, "
    "indexer: {num_heads: 16, head_dim: 12, topk: 3}}",
    "kda": f"{{{KDA}}}",
    "kda full rank gate": f"{{{KDA}, full_rank_gate: true, decay_floor: -5.0, conv_kernel: 2}}",
    "gated_deltanet": f"{{{GATED_DELTANET}}}",
    "gated_deltanet doubled": f"{{{GATED_DELTANET}, allow_neg_eigval: true, conv_kernel: 2}}",
    "lightning": "{kind: lightning, num_heads: 2, head_dim: 16}",
    "mamba1": "{kind: mamba1, intermediate_size: 48, state_size: 8, dt_rank: 5, inner_norm: true}",
    "mamba2": f"{{{MAMBA2}}}",
    "mamba2 groups": f"{{{MAMBA2}, n_groups: 2, bias: true, conv_bias: false, time_step_limit: [0.01, 0.3]}}",
}
FFNS = {
    "swiglu": f"{{{SWIGLU}}}",
    "swiglu gelu bias": f"{{{SWIGLU}, activation: gelu_tanh, bias: true}}",
    "clamped_swiglu": "{kind: clamped_swiglu, intermediate_size: 48, limit: 1.0, alpha: 1.702, up_offset: 1.0, bias: true}",
    "moe softmax": f"{{{MOE}, router: {{scoring_func: softmax, norm_topk_prob: false}}}}",
    "moe softmax normed": f"{{{MOE}, router: {{scoring_func: softmax, norm_topk_prob: true, bias: true}}}}",
    "moe sigmoid corrected": f"{{{MOE}, router: {{scoring_func: sigmoid, norm_topk_prob: true, correction_bias: true, "
    "routed_scaling_factor: 2.5}}",
    "moe sqrtsoftplus": f"{{{MOE}, router: {{scoring_func: sqrtsoftplus, norm_topk_prob: true}}}}",
    "moe groups by max": f"{{{MOE}, router: {{scoring_func: softmax, norm_topk_prob: false, n_group: 4, topk_group: 2, "
    "group_score: max}}",
    "moe groups by top2": f"{{{MOE}, router: {{scoring_func: sigmoid, norm_topk_prob: true, correction_bias: true, "
    "n_group: 4, topk_group: 2}}",
    "moe weight on input": f"{{{MOE}, router: {{scoring_func: sigmoid, norm_topk_prob: false, weight_on: input}}}}",
    "moe shared": f"{{{MOE}, num_shared_experts: 2, shared_gate: true, "
    "router: {scoring_func: softmax, norm_topk_prob: true}}",
    "moe latent": f"{{{MOE}, latent_size: 16, latent_norm: true, router: {{scoring_func: sigmoid, norm_topk_prob: true}}}}",
    "moe clamped": f"{{{MOE}, expert: {{kind: clamped_swiglu, limit: 1.0, alpha: 1.702, up_offset: 1.0, bias: true}}, "
    "router: {scoring_func: softmax, norm_topk_prob: true}}",
    "moe of one": "{kind: moe, num_experts: 4, num_experts_per_tok: 1, intermediate_size: 24, "
    "router: {scoring_func: sigmoid, norm_topk_prob: false}}",
}


def small_spec(mixer: str = MIXERS["gqa"], ffn: str = FFNS["swiglu"], *, layers: int = 2, tied: bool = False) -> Spec:
    """A model of equal layers, 32 wide, 64 ids."""
    return archc.loads_spec(
        f"""
spec_version: 1
name: small
tokenizer: {{kind: external, vocab_size: 64}}
embedding: {{hidden_size: 32, tie_word_embeddings: {str(tied).lower()}}}
position: {{kind: rope, theta: 10000.0}}
norm: {{kind: rms_norm, eps: 1.0e-5}}
mixers:
  mixer: {mixer}
ffns:
  ffn: {ffn}
stack: {{num_layers: {layers}, block: pre_norm, mixer: mixer, ffn: ffn}}
"""
    )


def every_expert(name: str) -> Spec:
    """A shipped spec whose tokens go to all experts: in another dtype none can be chosen otherwise."""
    overrides = [] if name == "tiny-llama" else ["ffns.moe.num_experts_per_tok=8"]
    return archc.load_spec(
        name, [*overrides, *(["ffns.moe.router.topk_group=4"] if name == "tiny-deepseek-v3" else [])]
    )


def enliven(model: nn.Module, seed: int = 0) -> Any:
    """Weights far from their initial values: scores that choose, biases and sinks that count. Decays stay as drawn."""
    draw = torch.Generator().manual_seed(seed + 1)
    params = graph_of(model).params()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, param in params.items():
            tensor = tensors[name]
            if param.init in ("a_log", "dt_bias") or not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=draw, dtype=torch.float32)
            if param.init == "ones":
                noise = 1.0 + 0.3 * noise
            elif param.init == "normal" and not name.startswith("embed"):
                noise = noise * 1.5 * param.shape[-1] ** -0.5
            tensor.copy_(noise)
    return model


def lively(spec: Any, **options: Any) -> Any:
    """A model on the CPU with such weights."""
    return enliven(archc.build(spec, device="cpu", seed=0, **options))


def tokens(batch: int, seq: int, vocab_size: int = 64, seed: int = 0) -> Tensor:
    """Random ids (batch, seq)."""
    return torch.randint(vocab_size, (batch, seq), generator=torch.Generator().manual_seed(seed))


def ids_for(model: nn.Module, batch: int, seq: int, seed: int = 0) -> Tensor:
    """Random ids that a model knows."""
    return tokens(batch, seq, graph_of(model).vocab_size or 64, seed)


def assert_close(got: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Largest difference, relative to the largest expected entry (or to 1 for smaller ones)."""
    assert got.shape == expected.shape, f"{tuple(got.shape)}, not {tuple(expected.shape)}"
    scale = max(1e-3, expected.detach().abs().max().item()) if expected.numel() else 1.0
    error = (got.detach().double() - expected.detach().double()).abs().max().item() if got.numel() else 0.0
    assert error <= tolerance * scale, f"off by {error:.3g} where entries reach {scale:.3g}"
