"""The mistakes of the grammar's last section, and what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from archc import registry

Mistakes = Callable[..., list[str]]

HEAD = """\
spec_version: 1
name: x
tokenizer: {kind: external, vocab_size: 1000}
"""


def test_a_ratio_and_a_short_pattern(mistakes: Mistakes, base: str) -> None:
    text = (
        base.replace("num_layers: 4", "num_layers: 26").replace("kda*3 mla", "3:1").replace("dense moe*", "dense moe")
    )
    assert mistakes(text) == [
        "my.yaml:16:10: stack.mixer: a pattern names mixers (found 3:1). 3:1 of kda and mla is (kda*3 mla)*; over 26 layers 2 "
        "are left, so end it, e.g. (kda*3 mla)* kda mla",
        "my.yaml:17:8: stack.ffn: 2 layers, but the stack has 26. Did you mean dense moe* (1 dense, 25 moe) or (dense moe)* "
        "(13 of each)?",
    ]


def test_half_a_position_and_near_names(mistakes: Mistakes) -> None:
    text = HEAD + (
        "embedding: {hidden_size: 5376, tie_word_embeddings: true, scale: sqrt(hidden)}\n"
        "position: {kind: rope, theta: 1000000.0, scaling: {kind: linear, factor: 8.0}}\n"
        "norm: {kind: rms_norm, eps: 1e-6}\n"
        "mixers:\n"
        "  global: {kind: gqa, num_heads: 32, num_kv_heads: 16, head_dim: 128, qk_norm: true}\n"
        "  local: {extends: global, window: 1024, position: {theta: 10000.0}}\n"
        "ffns:\n"
        "  mlp: {kind: zforward, intermediate_size: 21504, activation: gelu_pytorch_tanh}\n"
        "stack:\n"
        "  num_layers: 62\n"
        "  block: zsandwich\n"
        "  mixer: (local*5 global)*\n"
        "  ffn: mlp\n"
    )
    assert mistakes(text) == [
        "my.yaml:4:66: embedding.scale: no value called hidden here. Did you mean sqrt(hidden_size)?",
        "my.yaml:8:80: mixers.global.qk_norm: should be none, head, width or unit (found true). "
        "Qwen3 and Gemma 3: head; OLMo 2: width",
        "my.yaml:9:28: mixers.local.window: unknown key. Did you mean sliding_window? (window is a key of cache)",
        "my.yaml:9:42: mixers.local.position: kind is required: a mixer's position is used whole, nothing (scaling) comes from "
        "line 5. Did you mean {kind: rope, theta: 10000.0}?",
        "my.yaml:11:63: ffns.mlp.activation: unknown (found gelu_pytorch_tanh). Did you mean gelu_tanh?",
        "my.yaml:15:10: stack.mixer: 62 layers are no multiple of 6: 2 are left over. Say what they are, e.g. "
        "(local*5 global)* local*2",
    ]


def test_a_pasted_config(mistakes: Mistakes) -> None:
    text = (
        "spec_version: 1\n"
        "name: pasted\n"
        "vocab_size: 128256\n"
        "tokenizer: {kind: external}\n"
        "embedding: {hidden_size: 4096}\n"
        "position: {kind: rope, rope_theta: 500000.0}\n"
        "norm: {kind: rms_norm}\n"
        "mixers:\n"
        "  attn: {kind: gqa, num_attention_heads: 32, num_key_value_heads: 8}\n"
        "ffns:\n"
        "  mlp: {kind: swiglu, intermediate_size: 14336}\n"
        "stack:\n"
        "  num_hidden_layers: 32\n"
        "  block: pre_norm\n"
        "  mixer: attn\n"
        "  ffn: mlp\n"
        "  tie_word_embeddings: no\n"
    )
    assert mistakes(text) == [
        "my.yaml:3:1: vocab_size: belongs in tokenizer",
        "my.yaml:4:1: tokenizer: vocab_size is required (found at the top, line 3)",
        "my.yaml:5:1: embedding: tie_word_embeddings is required (found in stack, line 17)",
        "my.yaml:6:24: position.rope_theta: unknown key. Did you mean theta?",
        "my.yaml:7:1: norm: eps is required",
        "my.yaml:9:3: mixers.attn: head_dim is required; it is not derived (4096 / 32 would be 128)",
        "my.yaml:9:21: mixers.attn.num_attention_heads: unknown key. In a mixer this is num_heads",
        "my.yaml:9:46: mixers.attn.num_key_value_heads: unknown key. In a mixer this is num_kv_heads",
        "my.yaml:13:3: stack.num_hidden_layers: unknown key. Here this is num_layers",
        "my.yaml:17:3: stack.tie_word_embeddings: belongs in embedding; and should be true or false (found no)",
        "my.yaml: this looks like a Hugging Face config: archc import config.json writes the spec",
    ]


def test_a_whole_config_is_recognised(mistakes: Mistakes) -> None:
    found = mistakes(
        '{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32, "rms_norm_eps": 1e-5}'
    )
    assert "my.yaml:1:41: hidden_size: belongs in embedding" in found
    assert "my.yaml:1:62: num_attention_heads: unknown key. In a mixer this is num_heads" in found
    assert "my.yaml:1:89: rms_norm_eps: unknown key. In norm this is eps" in found
    assert found[-1] == "my.yaml: this looks like a Hugging Face config: archc import config.json writes the spec"


@pytest.mark.parametrize(("num_layers", "meant"), [(24, "(kda*3 mla)*"), (4, "kda*3 mla"), (7, "kda*3 mla")])
def test_a_comma_inside_braces(mistakes: Mistakes, base: str, num_layers: int, meant: str) -> None:
    text = (
        base[: base.index("stack:")]
        + f"stack: {{num_layers: {num_layers}, block: pre_norm, mixer: kda*3, mla, ffn: moe}}\n"
    )
    column = text.splitlines()[-1].index("mla,") + 1
    assert mistakes(text) == [
        f"my.yaml:13:{column}: stack.mla: unknown key without a value. mla is a mixer, and a comma ends a value inside {{ }}. "
        f"Did you mean mixer: {meant}?"
    ]


def test_layer_numbers_and_short_dtypes(mistakes: Mistakes, base: str) -> None:
    text = base.replace(
        "  mixer: kda*3 mla\n",
        "  mixer:\n"
        "    full_attn_layers: [4, 8, 12, 16, 20, 24, 27]\n"
        "    kda_layers: [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26]\n",
    ).replace("num_layers: 4", "num_layers: 27")
    assert mistakes(text + "cache:\n  policy: full\n  dtype: bf16\n  state_dtype: fp32\n") == [
        "my.yaml:17:5: stack.mixer: takes a pattern, not layer numbers (found full_attn_layers, kda_layers). Counted from 1 "
        "these lists are (kda*3 mla)* kda*2 mla; counted from 0 they don't fit, 27 layers end at 26",
        "my.yaml:22:10: cache.dtype: unknown (found bf16). Did you mean bfloat16? Short forms are for the command line",
        "my.yaml:23:16: cache.state_dtype: unknown (found fp32). Did you mean float32? Short forms are for the command line",
    ]


ONE = [
    # Numbers and text.
    (
        "num_layers: 4",
        "num_layers: 128K",
        "my.yaml:14:15: stack.num_layers: should be an integer (found '128K'). Did you mean 131072?",
    ),
    (
        "num_layers: 4",
        "num_layers: 1_000",
        "my.yaml:14:15: stack.num_layers: should be an integer (found '1_000'). Did you mean 1000?",
    ),
    (
        "num_layers: 4",
        "num_layers: 04",
        "my.yaml:14:15: stack.num_layers: should be an integer (found '04'). Did you mean 4?",
    ),
    (
        "num_layers: 4",
        "num_layers: 4.0",
        "my.yaml:14:15: stack.num_layers: should be an integer (found 4.0). Did you mean 4?",
    ),
    ("num_layers: 4", "num_layers: true", "my.yaml:14:15: stack.num_layers: should be an integer (found true)"),
    ("num_layers: 4", "num_layers: 0", "my.yaml:14:15: stack.num_layers: should be at least 1 (found 0)"),
    ("num_layers: 4", "num_layers: 10001", "my.yaml:14:15: stack.num_layers: should be at most 10000 (found 10001)"),
    ("num_layers: 4", "num_layers: [4]", "my.yaml:14:15: stack.num_layers: should be an integer (found a list)"),
    ("eps: 1e-5", "eps: small", "my.yaml:6:29: norm.eps: should be a number (found 'small')"),
    ("spec_version: 1", "spec_version: 2", "my.yaml:1:15: spec_version: should be 1 (found 2)"),
    ("name: small", "name: 3", "my.yaml:2:7: name: should be text (found 3)"),
    ("name: small", "name: ''", "my.yaml:2:7: name: should be some text (found '')"),
    ("name: small\n", "", "my.yaml: name is required"),
    # Kinds.
    (
        "kind: rms_norm",
        "kind: rmsnorm",
        "my.yaml:6:14: norm.kind: unknown norm (found rmsnorm). Did you mean rms_norm? Installed: NORMS",
    ),
    ("kind: rms_norm, ", "", "my.yaml:6:1: norm: kind is required. Installed: NORMS"),
    (
        "kind: rms_norm",
        "kind: 3",
        "my.yaml:6:14: norm.kind: should be the name of a norm (found 3). Installed: NORMS",
    ),
    ("norm: {kind: rms_norm, eps: 1e-5}", "norm: rms_norm", "my.yaml:6:1: norm: eps is required"),
    (
        "norm: {kind: rms_norm, eps: 1e-5}",
        "norm: 3",
        "my.yaml:6:7: norm: should be a norm (found 3). A mapping with its kind, or the bare name",
    ),
    (
        "norm: {kind: rms_norm, eps: 1e-5}",
        "norm: [a]",
        "my.yaml:6:7: norm: should be a norm (found a list). A mapping with its kind, or the bare name",
    ),
    ("block: pre_norm", "blok: pre_norm", "my.yaml:15:3: stack.blok: unknown key. Did you mean block?"),
    # Rules and unions.
    (
        "num_heads: 4,",
        "num_heads: 4, num_kv_heads: 3,",
        "my.yaml:8:52: mixers.kda.num_kv_heads: should divide num_heads, 4 (found 3)",
    ),
    (
        "num_heads: 4,",
        "num_heads: 4, tokens: x,",
        "my.yaml:8:46: mixers.kda.tokens: should be an integer or a list (found 'x')",
    ),
    (
        "num_heads: 4,",
        "num_heads: 4, softmax_scale: 1/0,",
        "my.yaml:8:53: mixers.kda.softmax_scale: should be a scale (found 1/0). "
        "A scale is a number, a/b, sqrt(x) or a/sqrt(x); "
        "x is a number, hidden_size or a key beside it",
    ),
    (
        "num_heads: 4,",
        "num_heads: 4, softmax_scale: [1],",
        "my.yaml:8:53: mixers.kda.softmax_scale: should be a scale (found a list). "
        "A scale is a number, a/b, sqrt(x) or a/sqrt(x)",
    ),
    # Patterns.
    ("mixer: kda*3 mla", "mixer: kda*3 mlb", "my.yaml:16:10: stack.mixer: no mixer is called mlb. Did you mean mla?"),
    ("mixer: kda*3 mla", "mixer: kda*3 moe", "my.yaml:16:10: stack.mixer: moe is an ffn; this pattern names mixers"),
    (
        "mixer: kda*3 mla",
        "mixer: kda*3 mla+moe",
        "my.yaml:16:10: stack.mixer: mixer+ffn stands in layers (found mla+moe). A mixer pattern names mixers alone",
    ),
    ("mixer: kda*3 mla", "mixer: 7", "my.yaml:16:10: stack.mixer: a pattern names mixers (found 7)"),
    ("mixer: kda*3 mla", "mixer: [kda, 7]", "my.yaml:16:10: stack.mixer: a pattern names mixers (found 7)"),
    ("mixer: kda*3 mla", "mixer: []", "my.yaml:16:10: stack.mixer: a pattern names mixers (found nothing)"),
    (
        "mixer: kda*3 mla",
        "mixer: Kda",
        "my.yaml:16:10: stack.mixer: a pattern names mixers (found Kda). Names start with a lower-case letter",
    ),
    ("  mixer: kda*3 mla\n", "", "my.yaml:13:1: stack: mixer is required. Or layers, for both tracks in one"),
    (
        "  mixer: kda*3 mla\n",
        "  mixer: kda*3 none\n  layers: kda*4\n",
        "my.yaml:17:11: stack.layers: layers is both tracks in one: it excludes mixer and ffn",
    ),
    (
        "mixer: kda*3 mla\n  ffn: dense moe*",
        "mixer: kda*3 none\n  ffn: moe*3 none",
        "my.yaml:17:8: stack.ffn: layer 3 (counted from 0) has neither mixer nor ffn",
    ),
    (
        "mixer: kda*3 mla\n  ffn: dense moe*",
        "layers: kda*3 none",
        "my.yaml:16:11: stack.layers: a layer with no sub-layer at all (found none)",
    ),
    (
        "mixer: kda*3 mla\n  ffn: dense moe*",
        "layers: moe+kda*4",
        "my.yaml:16:11: stack.layers: the mixer comes first (found moe+kda). Did you mean kda+moe?",
    ),
    # What is not there yet.
    (
        "  block: pre_norm",
        "  block: pre_norm\n  cross: kda",
        "my.yaml:16:3: stack.cross: reads an encoder, which no layer here does. A section decoder has it, beside an encoder",
    ),
    (
        "  block: pre_norm",
        "  block: pre_norm\n  mask: prefix",
        "my.yaml:16:3: stack.mask: kda, which is zattend, takes the mask causal (found prefix)",
    ),
    (
        "stack:",
        "decoder:",
        "my.yaml:13:1: decoder: a decoder reads an encoder, and there is none. A decoder-only model has a stack",
    ),
    # Keys in the wrong place.
    ("eps: 1e-5", "eps: 1e-5, theta: 3", "my.yaml:6:35: norm.theta: unknown key. theta is a key of position"),
    (
        "  block: pre_norm",
        "  block: pre_norm\n  hidden_size: 64",
        "my.yaml:16:3: stack.hidden_size: belongs in embedding",
    ),
    ("  block: pre_norm", "  block: pre_norm\n  dtype: float32", "my.yaml:16:3: stack.dtype: belongs at the top"),
    ("  block: pre_norm", "  block: pre_norm\n  num_heads: 3", "my.yaml:16:3: stack.num_heads: belongs in a mixer"),
    (
        "  block: pre_norm",
        "  block: pre_norm\n  typo: null",
        "my.yaml:16:3: stack.typo: unknown key. Known are "
        "num_layers, block, mixer, cross, ffn, layers, final_norm, mask, tokenizer, embedding, position, norm, cache",
    ),
    (
        "  dense: {kind: zforward, intermediate_size: 128}",
        "  dense: {kind: zforward, ffn_dim: 128}",
        "my.yaml:11:27: ffns.dense.ffn_dim: unknown key. In an ffn this is intermediate_size",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), ONE, ids=[new.strip()[:50].replace("\n", " ") for _, new, _ in ONE])
def test_one_mistake_is_one_message(mistakes: Mistakes, base: str, old: str, new: str, message: str) -> None:
    assert old in base
    found = mistakes(base.replace(old, new, 1))
    message = message.replace("NORMS", ", ".join(registry.names("norm")))
    assert message in found
    assert len(found) == 1 or "decoder" in new or "blok" in new


def test_names_no_pattern_could_place(mistakes: Mistakes, base: str) -> None:
    text = base.replace("  mla:", "  none:").replace("kda*3 mla", "kda")
    assert mistakes(text) == ["my.yaml:9:3: mixers.none: none stands for no sub-layer and can't be a name"]
    text = base.replace("  moe:", "  MoE:").replace("dense moe*", "dense")
    assert mistakes(text)[0].startswith("my.yaml:12:3: ffns.MoE: can't be a name in a pattern (found MoE)")
    text = base.replace("  moe:", "  kda:").replace("dense moe*", "dense")
    assert mistakes(text) == ["my.yaml:12:3: ffns.kda: kda is a mixer already. Mixers and ffns share one name space"]


def test_what_siblings_share_is_reported_once(mistakes: Mistakes, base: str) -> None:
    text = base.replace("head_dim: 16}", "head_dim: 0x}\n  a: {extends: kda}\n  b: {extends: kda}")
    assert mistakes(text) == ["my.yaml:8:48: mixers.kda.head_dim: should be an integer (found '0x')"]


def test_a_file_of_many_mistakes_shows_a_hundred(mistakes: Mistakes, base: str) -> None:
    found = mistakes(base + "".join(f"k{i}: 1\n" for i in range(300)))
    assert len(found) == 101
    assert found[-1] == "my.yaml: more mistakes follow these 100"
