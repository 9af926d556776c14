"""Rules across the keys of a kind: each mistake has the line of the key to change, and says what is wrong."""

from __future__ import annotations

import re

import pytest

from archc.errors import GraphError, SpecError
from archc.expansion import expand
from archc.spec.load import loads_spec

TEXT = """\
spec_version: 1
name: small
tokenizer: {kind: external, vocab_size: 50}
embedding:
  hidden_size: 16
  tie_word_embeddings: true
position:
  kind: rope
  theta: 1.0e+4
norm: {kind: rms_norm, eps: 1e-5}
mixers:
  attn:
    kind: gqa
    num_heads: 4
    num_kv_heads: 2
    head_dim: 8
  kda:
    kind: kda
    num_heads: 2
    head_dim: 8
ffns:
  moe:
    kind: moe
    num_experts: 8
    num_experts_per_tok: 2
    intermediate_size: 12
    router:
      scoring_func: softmax
      norm_topk_prob: true
stack: {num_layers: 2, block: pre_norm, mixer: attn kda, ffn: moe}
"""
AFTER = {
    "attn": "    head_dim: 8\n  kda:",
    "kda": "    head_dim: 8\nffns:",
    "moe": "    intermediate_size: 12\n",
    "router": "      norm_topk_prob: true\n",
    "position": "  theta: 1.0e+4\n",
    "embedding": "  tie_word_embeddings: true\n",
}
LLAMA3 = (
    "  scaling:\n    kind: llama3\n    factor: 8.0\n    original_max_position_embeddings: 64\n"
    "    low_freq_factor: 4.0\n    high_freq_factor: 1.0\n"
)
YARN = "  scaling:\n    kind: yarn\n    factor: 4.0\n    original_max_position_embeddings: 64\n"

RULES = [
    # (what is replaced, or the section that gets a key; by what; the line it is about; the message)
    ("    num_kv_heads: 2\n", "    num_kv_heads: 3\n", "num_kv_heads", "should divide num_heads, 4 (found 3)"),
    ("attn", "    sliding_window: 4\n    attention_chunk_size: 4\n", "attention_chunk_size", "state one of them"),
    ("attn", "    softmax_scale: 1/sqrt(heads)\n", "softmax_scale", "no value called heads here"),
    ("kda", "    decay_floor: 1.0\n", "decay_floor", "should be below 0"),
    ("kda", "    conv_kernel: 1\n", "conv_kernel", "should be at least 2"),
    (
        "    num_experts_per_tok: 2\n",
        "    num_experts_per_tok: 9\n",
        "num_experts_per_tok",
        "at most num_experts, 8 (found 9)",
    ),
    ("router", "      n_group: 3\n", "n_group", "should divide num_experts, 8 (found 3)"),
    (
        "router",
        "      n_group: 8\n      topk_group: 1\n",
        "topk_group",
        "leaves 1 experts, fewer than num_experts_per_tok",
    ),
    (
        "router",
        "      n_group: 8\n      topk_group: 2\n",
        "n_group",
        "leaves one expert a group, and group_score top2_sum needs two",
    ),
    ("router", "      n_group: 2\n      topk_group: 3\n", "topk_group", "should be at most n_group, 2 (found 3)"),
    ("moe", "    shared_intermediate_size: 8\n", "shared_intermediate_size", "num_shared_experts is 0"),
    ("moe", "    shared_gate: true\n", "shared_gate", "gates nothing: num_shared_experts is 0"),
    ("moe", "    latent_norm: true\n", "latent_norm", "needs latent_size"),
    (
        "moe",
        "    expert:\n      kind: swiglu\n      intermediate_size: 12\n",
        "      intermediate_size",
        "The width of an expert is the intermediate_size of the moe",
    ),
    (
        "moe",
        "    expert: {kind: moe, num_experts: 2, num_experts_per_tok: 1,\n"
        "             router: {scoring_func: softmax, norm_topk_prob: true}}\n",
        "    expert",
        "moe can't be an expert: it is no plain or gated feed-forward",
    ),
    ("position", LLAMA3, "high_freq_factor", "should be at least low_freq_factor, 4.0"),
    ("position", f"{YARN}    beta_fast: 0.5\n", "beta_fast", "should be at least beta_slow, 1.0"),
    ("  theta: 1.0e+4\n", "  theta: 1.0\n", "theta", "should be above 1"),
    (
        "embedding",
        "  num_embeddings: 64\n  pad_vocab_to_multiple_of: 8\n",
        "pad_vocab_to_multiple_of",
        "state one of them",
    ),
]


def with_key(place: str, keys: str) -> str:
    """The spec with a section longer by some keys, or with a text replaced."""
    if place in AFTER:
        anchor = AFTER[place]
        first, rest = anchor.split("\n", 1)
        return TEXT.replace(anchor, f"{first}\n{keys}{rest}")
    return TEXT.replace(place, keys)


def test_the_spec_itself_is_valid():
    assert loads_spec(TEXT).name == "small"


@pytest.mark.parametrize(
    ("place", "keys", "about", "words"), RULES, ids=[f"{row[2].strip()}: {row[3]}" for row in RULES]
)
def test_a_mistake_has_the_line_of_its_key_and_says_what_is_wrong(place, keys, about, words):
    text = with_key(place, keys)
    assert text != TEXT
    with pytest.raises(SpecError) as caught:
        loads_spec(text)
    (problem,) = caught.value.problems
    key = about if about.startswith(" ") else rf" *{about}"
    (line,) = (n for n, found in enumerate(text.splitlines(), 1) if re.match(rf"{key}:", found))
    assert problem.line == line
    assert problem.path.split(".")[-1] == about.strip()
    assert words in f"{problem.message}. {problem.suggestion}"


def test_a_table_has_a_row_for_every_id():
    text = with_key("embedding", "  num_embeddings: 49\n")
    with pytest.raises(GraphError, match="num_embeddings 49 is less than the 50 ids of the tokenizer"):
        expand(loads_spec(text))
    assert expand(loads_spec(text.replace("49", "50"))).params()["embed_tokens.weight"].shape == (50, 16)
