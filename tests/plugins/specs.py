"""A tiny spec with its parts exchangeable: two layers, 16 channels, so that a check takes a fraction of a second."""

from __future__ import annotations

TEXT = """\
spec_version: 1
name: tiny
tokenizer: {{kind: external, vocab_size: {vocab}}}
embedding: {embedding}
position: {position}
norm: {norm}
mixers:
  mixer: {mixer}
ffns:
  ffn: {ffn}
stack: {stack}
{more}
"""
ROPE = "{kind: rope, theta: 100.0}"
NORM = "{kind: rms_norm, eps: 1.0e-5}"
EMBEDDING = "{hidden_size: 16, tie_word_embeddings: false}"
STACK = "{num_layers: 2, block: pre_norm, mixer: mixer, ffn: ffn}"


def gqa(keys: str = "", *, heads: int = 4, kv_heads: int = 2) -> str:
    """A gqa with more keys."""
    return f"{{kind: gqa, num_heads: {heads}, num_kv_heads: {kv_heads}, head_dim: 8{_more(keys)}}}"


def mla(keys: str = "") -> str:
    """An mla with more keys."""
    return (
        "{kind: mla, num_heads: 2, kv_lora_rank: 12, qk_nope_head_dim: 8, qk_rope_head_dim: 4, v_head_dim: 6"
        f"{_more(keys)}}}"
    )


def kda(keys: str = "") -> str:
    """A kda with more keys."""
    return f"{{kind: kda, num_heads: 2, head_dim: 8{_more(keys)}}}"


def gated_deltanet(keys: str = "", *, key_heads: int = 2, value_heads: int = 4) -> str:
    """A gated_deltanet with more keys; values are narrower than keys."""
    return (
        f"{{kind: gated_deltanet, num_key_heads: {key_heads}, num_value_heads: {value_heads}, "
        f"key_head_dim: 8, value_head_dim: 6{_more(keys)}}}"
    )


def mamba2(keys: str = "", *, heads: int = 4, groups: int = 2) -> str:
    """A mamba2 with more keys; states are wider than heads."""
    return f"{{kind: mamba2, num_heads: {heads}, head_dim: 6, state_size: 8, n_groups: {groups}{_more(keys)}}}"


def swiglu(keys: str = "") -> str:
    """A swiglu with more keys."""
    return f"{{kind: swiglu, intermediate_size: 24{_more(keys)}}}"


def clamped(keys: str = "") -> str:
    """A clamped_swiglu with more keys."""
    return f"{{kind: clamped_swiglu, intermediate_size: 24, limit: 0.7{_more(keys)}}}"


def moe(router: str = "scoring_func: softmax, norm_topk_prob: true", keys: str = "") -> str:
    """A moe of 8 experts, 2 a token."""
    head = "{kind: moe, num_experts: 8, num_experts_per_tok: 2, intermediate_size: 12, "
    return f"{head}router: {{{router}}}{_more(keys)}}}"


def tiny(
    mixer: str | None = None,
    ffn: str | None = None,
    *,
    position: str = ROPE,
    norm: str = NORM,
    embedding: str = EMBEDDING,
    stack: str = STACK,
    vocab: int = 40,
    more: str = "",
) -> str:
    """The spec's text."""
    words = {"mixer": mixer or gqa(), "ffn": ffn or swiglu(), "position": position, "norm": norm}
    return TEXT.format(**words, embedding=embedding, stack=stack, vocab=vocab, more=more)


def _more(keys: str) -> str:
    return f", {keys}" if keys else ""
