"""Small specs and ops for the tests of graphs."""

from __future__ import annotations

from collections.abc import Sequence

from archc.expansion import expand
from archc.graph.graph import Graph
from archc.graph.vocabulary import Builder
from archc.ir.size import BATCH, SEQ
from archc.ir.values import TensorType, Value
from archc.spec.load import loads_spec

TEXT = """
spec_version: 1
name: small
tokenizer: {{kind: external, vocab_size: 50}}
embedding: {{hidden_size: 32, tie_word_embeddings: {tied}}}
position: {position}
norm: {{kind: rms_norm, eps: 1.0e-5}}
mixers:
  one: {one}
  two: {two}
ffns:
  mlp: {{kind: swiglu, intermediate_size: 48}}
  moe: {{kind: moe, num_experts: 4, num_experts_per_tok: 2, intermediate_size: 16, num_shared_experts: 1,
        router: {{scoring_func: sigmoid, norm_topk_prob: true, correction_bias: true}}}}
stack: {{num_layers: {layers}, block: pre_norm, mixer: {mixer}, ffn: {ffn}}}
{more}
"""
GQA = "{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8}"
WINDOWED = "{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, sliding_window: 4}"
SINKS = "{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, sink_logits: true}"
MLA = "{kind: mla, num_heads: 2, kv_lora_rank: 12, qk_nope_head_dim: 8, qk_rope_head_dim: 4, v_head_dim: 6}"
KDA = "{kind: kda, num_heads: 2, head_dim: 8}"
BY_LAYER = "{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, scale_attn_by_inverse_layer_idx: true}"
ROPE = "{kind: rope, theta: 10000.0}"


def small(
    one: str = GQA,
    two: str = KDA,
    *,
    mixer: str = "one*",
    ffn: str = "mlp*",
    layers: int = 4,
    position: str = ROPE,
    tied: str = "false",
    more: str = "",
) -> Graph:
    """The graph of a small spec; unused mixers and ffns change nothing."""
    words = {"one": one, "two": two, "mixer": mixer, "ffn": ffn, "position": position, "tied": tied, "more": more}
    return expand(loads_spec(TEXT.format(layers=layers, **words)))


def rows(g: Builder, name: str = "x", width: int = 8, axis: str | None = None, dtype: str = "model") -> Value:
    """One more input (batch, seq, width)."""
    return g.add_input(name, TensorType((BATCH, SEQ, width), dtype, axis))


def graph_of(g: Builder, outputs: Sequence[Value], mtp: Graph | None = None) -> Graph:
    """What a builder has traced, as a graph."""
    g.root.outputs += outputs
    named = {f"output_{number}": value for number, value in enumerate(outputs)}
    return Graph("small", g.root, "float32", 50, None, 0, inputs=g.inputs, outputs=named, mtp=mtp)
