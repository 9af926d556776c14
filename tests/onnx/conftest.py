"""Tiny architectures that together use every kind and key, and what it takes to compare their files with torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.load import loads_spec

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from safetensors.torch import save_file  # noqa: E402

from archc.torch_backend.build import build  # noqa: E402
from archc.torch_backend.weights import weights_of  # noqa: E402
from archc_exporters.onnx.export import export  # noqa: E402
from archc_exporters.onnx.report import ExportReport  # noqa: E402
from archc_exporters.onnx.session import Conversation, load_session  # noqa: E402
from tests.onnx.layouts import CHOOSING, LAYOUTS  # noqa: E402

BASE = """
spec_version: 1
name: {name}
tokenizer: {{kind: external, vocab_size: 61}}
norm: {{kind: rms_norm, eps: 1e-5}}
max_position_embeddings: 40
"""

ROPE = "position: {kind: rope, theta: 10000.0}\n"
EMBEDDING = "embedding: {hidden_size: 32, tie_word_embeddings: false}\n"

ARCHITECTURES = {
    **LAYOUTS,
    **CHOOSING,
    "llama": ROPE
    + EMBEDDING
    + """
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 2, block: pre_norm, mixer: gqa, ffn: mlp}
""",
    "gpt-oss": EMBEDDING
    + """
position:
  kind: rope
  theta: 150000.0
  scaling: {kind: yarn, factor: 4.0, original_max_position_embeddings: 16, truncate: false}
mixers:
  near:
    {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, qkv_bias: true, o_bias: true, sink_logits: true,
     sliding_window: 5}
  far: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, qkv_bias: true, o_bias: true, sink_logits: true}
ffns:
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 3
    intermediate_size: 16
    expert: {kind: clamped_swiglu, limit: 0.7, alpha: 1.702, up_offset: 1.0, bias: true}
    router: {scoring_func: softmax, norm_topk_prob: true, bias: true}
stack: {num_layers: 2, block: pre_norm, mixer: near far, ffn: moe}
""",
    "deepseek-v3": EMBEDDING
    + """
position:
  kind: rope
  theta: 10000.0
  interleaved: true
  scaling: {kind: yarn, factor: 4.0, original_max_position_embeddings: 16, mscale: 1.0, mscale_all_dim: 1.0}
mixers:
  mla: {kind: mla, num_heads: 4, q_lora_rank: 24, kv_lora_rank: 16, qk_nope_head_dim: 12, qk_rope_head_dim: 8, v_head_dim: 12}
ffns:
  dense: {kind: swiglu, intermediate_size: 48}
  moe:
    kind: moe
    num_experts: 12
    num_experts_per_tok: 3
    num_shared_experts: 1
    intermediate_size: 16
    router:
      {scoring_func: sigmoid, correction_bias: true, norm_topk_prob: true, routed_scaling_factor: 2.5, n_group: 4,
       topk_group: 2}
stack: {num_layers: 2, block: pre_norm, mixer: mla, ffn: dense moe}
""",
    "kimi-linear": EMBEDDING
    + """
position: none
mixers:
  kda: {kind: kda, num_heads: 2, head_dim: 16, conv_kernel: 4}
  mla: {kind: mla, num_heads: 2, kv_lora_rank: 16, qk_nope_head_dim: 12, qk_rope_head_dim: 4, v_head_dim: 12}
ffns:
  dense: {kind: swiglu, intermediate_size: 48}
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    num_shared_experts: 1
    intermediate_size: 16
    router: {scoring_func: sigmoid, correction_bias: true, norm_topk_prob: true, routed_scaling_factor: 2.446}
stack: {num_layers: 3, block: pre_norm, mixer: kda kda mla, ffn: dense moe moe}
cache: {policy: full, dtype: bfloat16, state_dtype: float32}
""",
    "qwen3-next": EMBEDDING
    + """
position: {kind: rope, theta: 10000.0, partial_rotary_factor: 0.25}
norm: {kind: rms_norm, eps: 1e-5, weight_offset: 1.0}
mixers:
  gdn: {kind: gated_deltanet, num_key_heads: 2, num_value_heads: 4, key_head_dim: 16, value_head_dim: 8}
  doubled:
    {kind: gated_deltanet, num_key_heads: 3, num_value_heads: 3, key_head_dim: 8, value_head_dim: 12, conv_kernel: 2,
     allow_neg_eigval: true}
  attn: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, qk_norm: head, output_gate: true}
ffns:
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    num_shared_experts: 1
    shared_gate: true
    intermediate_size: 16
    router: {scoring_func: softmax, norm_topk_prob: true}
stack: {num_layers: 3, block: pre_norm, mixer: gdn doubled attn, ffn: moe}
cache: {policy: full, state_dtype: float32}
""",
    "gqa keys": """
position: none
embedding: {hidden_size: 32, tie_word_embeddings: true, pad_vocab_to_multiple_of: 16, scale: sqrt(hidden_size)}
norm: {kind: rms_norm, eps: 1e-6, weight_offset: 1.0}
mixers:
  head:
    {kind: gqa, num_heads: 4, num_kv_heads: 1, head_dim: 8, qk_norm: head, qkv_bias: true,
     attn_logit_softcapping: 2.0, sliding_window: 4,
     position: {kind: rope, theta: 10000.0, partial_rotary_factor: 0.5}}
  width:
    {kind: gqa, num_heads: 4, num_kv_heads: 4, head_dim: 8, qk_norm: width, o_bias: true, attn_logit_softcapping: 2.0,
     position: {kind: rope, theta: 10000.0, partial_rotary_factor: 0.5, trailing: true, interleaved: true}}
  unit:
    {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, qk_norm: unit, attention_chunk_size: 6, sink_logits: true,
     position: {kind: rope, theta: 5000.0, interleaved: true,
       scaling: {kind: llama3, factor: 8.0, original_max_position_embeddings: 16, low_freq_factor: 1.0, high_freq_factor: 4.0}}}
  capped:
    {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, sink_logits: true, attn_logit_softcapping: 1.5,
     position: {kind: rope, theta: 10000.0, scaling: {kind: linear, factor: 2.0}}}
  warm:
    {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, output_gate: true, softmax_scale: 0.5,
     scale_attn_by_inverse_layer_idx: true, query_temperature: {scale: 0.5, floor: 4}, position: none}
  chunk:
    {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, attention_chunk_size: 4, position: {kind: rope, theta: 10000.0}}
ffns:
  gelu: {kind: swiglu, intermediate_size: 48, activation: gelu, bias: true}
  tanh: {kind: swiglu, intermediate_size: 48, activation: gelu_tanh}
  relu2: {kind: swiglu, intermediate_size: 48, activation: relu2}
  clamped: {kind: clamped_swiglu, intermediate_size: 48, limit: 0.5, alpha: 1.5}
stack:
  num_layers: 6
  block: {kind: pre_norm, residual_multiplier: 0.5}
  mixer: head width unit capped warm chunk
  ffn: gelu tanh relu2 clamped gelu tanh
head: {kind: lm, bias: true, logit_scale: 0.5, final_logit_softcapping: 3.0}
""",
    "mla and kda keys": EMBEDDING
    + """
position: none
mixers:
  biased:
    {kind: mla, num_heads: 2, q_lora_rank: 24, kv_lora_rank: 16, qk_nope_head_dim: 12, qk_rope_head_dim: 8,
     v_head_dim: 12, bias: true, output_gate: true}
  turned:
    {kind: mla, num_heads: 2, kv_lora_rank: 16, qk_nope_head_dim: 8, qk_rope_head_dim: 8, v_head_dim: 12, output_gate: true,
     position: {kind: rope, theta: 10000.0}}
  floored: {kind: kda, num_heads: 2, head_dim: 16, conv_kernel: 2, decay_floor: -5.0}
  gated: {kind: kda, num_heads: 2, head_dim: 16, conv_kernel: 3, full_rank_gate: true}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 4, block: pre_norm, mixer: biased floored turned gated, ffn: mlp}
head: none
""",
    "moe keys": ROPE
    + """
embedding: {hidden_size: 32, embedding_size: 24, tie_word_embeddings: true}
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
ffns:
  softmax:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    intermediate_size: 16
    num_shared_experts: 2
    shared_gate: true
    router: {scoring_func: softmax, norm_topk_prob: false, routed_scaling_factor: 1.5}
  sqrt:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    intermediate_size: 16
    latent_size: 16
    latent_norm: true
    router: {scoring_func: sqrtsoftplus, norm_topk_prob: true, correction_bias: true, bias: true}
  groups:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 3
    intermediate_size: 16
    router:
      {scoring_func: softmax, norm_topk_prob: false, routed_scaling_factor: 4.0, n_group: 4, topk_group: 2,
       group_score: max}
  on_input:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    intermediate_size: 16
    num_shared_experts: 1
    shared_intermediate_size: 24
    router: {scoring_func: sigmoid, norm_topk_prob: false, weight_on: input}
  gelu:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    intermediate_size: 16
    expert: {kind: swiglu, activation: gelu, bias: true}
    router: {scoring_func: sigmoid, norm_topk_prob: true}
  gelu_on_input:
    kind: moe
    num_experts: 6
    num_experts_per_tok: 2
    intermediate_size: 16
    expert: {kind: swiglu, activation: gelu, bias: true}
    router: {scoring_func: sigmoid, norm_topk_prob: true, weight_on: input}
stack: {num_layers: 6, block: pre_norm, mixer: gqa, ffn: softmax sqrt groups on_input gelu gelu_on_input}
""",
    "slopes": EMBEDDING
    + """
position: alibi
mixers:
  six: {kind: gqa, num_heads: 6, num_kv_heads: 3, head_dim: 8}
  near: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, sliding_window: 5}
  chunk: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, attention_chunk_size: 4}
  sinks: {kind: gqa, num_heads: 6, num_kv_heads: 3, head_dim: 8, sink_logits: true}
  near_sinks:
    {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, sliding_window: 5, sink_logits: true, attn_logit_softcapping: 1.5}
  capped: {kind: gqa, num_heads: 4, num_kv_heads: 1, head_dim: 8, attn_logit_softcapping: 1.5}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 6, block: pre_norm, mixer: six near chunk sinks near_sinks capped, ffn: mlp}
""",
    "learned positions": EMBEDDING
    + """
position: {kind: learned, offset: 2}
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 2, block: pre_norm, mixer: gqa, ffn: mlp}
""",
    "sinusoidal positions": EMBEDDING
    + """
position: sinusoidal
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 2, block: pre_norm, mixer: gqa, ffn: mlp}
""",
    "window": ROPE
    + EMBEDDING
    + """
mixers:
  near: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, sliding_window: 5}
  far: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 2, block: pre_norm, mixer: near far, ffn: mlp}
""",
    "wide": ROPE
    + EMBEDDING
    + """
mixers:
  plain: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16}
  biased: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 16, qkv_bias: true}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 2, block: pre_norm, mixer: plain biased, ffn: mlp}
""",
    "forgetting": ROPE
    + EMBEDDING
    + """
mixers:
  gqa: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}
  far: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, sliding_window: 9, cache: {policy: window, window: 3}}
  logits:
    {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, sink_logits: true,
     cache: {policy: window, window: 4, sink_tokens: 3}}
  sloping: {kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, position: alibi}
  mla: {kind: mla, num_heads: 2, kv_lora_rank: 16, qk_nope_head_dim: 12, qk_rope_head_dim: 4, v_head_dim: 12}
  short: {extends: mla, cache: {policy: window, window: 2}}
ffns:
  mlp: {kind: swiglu, intermediate_size: 48}
stack: {num_layers: 6, block: pre_norm, mixer: gqa far logits sloping mla short, ffn: mlp}
cache: {policy: window, window: 5, sink_tokens: 2}
""",
}

FAMILIES = ("llama", "gpt-oss", "deepseek-v3", "kimi-linear", "qwen3-next")
TOKENS = 20
VOCABULARY = 61


def graph_of(name: str, *overrides: str) -> Graph:
    """The graph of one of the tiny architectures, with changes as of --set."""
    text = ARCHITECTURES[name]
    base = BASE.format(name=name.replace(" ", "-"))
    if "\nnorm:" in text:
        base = base.replace("norm: {kind: rms_norm, eps: 1e-5}\n", "")
    return expand(loads_spec(base + text, overrides=overrides))


@dataclass(frozen=True)
class Exported:
    """A file, the weights it was made from, and what torch says of two sequences: ids and outputs (2, TOKENS[, width])."""

    graph: Graph
    folder: Path
    weights: Path
    report: ExportReport
    ids: np.ndarray
    expected: np.ndarray

    def conversation(self, batch: int) -> Conversation:
        """Empty caches for ``batch`` sequences, long enough for the padding too."""
        session = _session(self.folder / "model.onnx")
        return Conversation(session, batch=batch, capacity=self.graph.capacity(TOKENS + 8))


@cache
def _session(path: Path) -> Any:
    return load_session(path, threads=1)


def draw(model: Any, dtype: Any) -> None:
    """Weights so large that every part matters in the output, rounded to ``dtype``."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in weights_of(model).items():
            if name.endswith(("A_log", "dt_bias")) or not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in name and tensor.dim() == 1:
                tensor.add_(0.2 * noise)
            elif tensor.dim() == 1:
                tensor.copy_(0.5 * noise)
            else:
                fan_in = tensor.shape[-1] if "embed" not in name else 1
                tensor.copy_(noise * fan_in**-0.5)
            tensor.copy_(tensor.to(dtype))


def make(name: str, dtype: str, folder: Path, **choices: Any) -> Exported:
    """Export an architecture with weights that both sides hold exactly; ``choices`` are the exporter's own."""
    graph = graph_of(name)
    model = build(graph, device="cpu", seed=0)
    draw(model, getattr(torch, dtype))
    weights = folder / "weights.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in weights_of(model).items()}, weights)
    # Tokens whose experts no rounding to float16 changes: a changed expert is no error of the file.
    ids = np.random.default_rng(6).integers(0, VOCABULARY, (2, TOKENS))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).numpy()
    # CUDA has no GroupQueryAttention in float32; the CPU has, so both of its forms meet torch.
    choices.setdefault("provider", "cpu" if dtype == "float32" else "cuda")
    report = export(graph, folder / "out", dtype=dtype, weights=weights, **choices)
    if "logits" in graph.outputs:
        expected = expected[..., :VOCABULARY]
    return Exported(graph, folder / "out", weights, report, ids, expected)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """(architecture, dtype, choices of the exporter) -> its export, made once."""

    @cache
    def get(name: str, dtype: str, **choices: Any) -> Exported:
        return make(name, dtype, tmp_path_factory.mktemp("export"), **choices)

    return get
