"""What attention keeps for backward, in all its forms: the graph's number is autograd's, to the byte."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from archc.expansion import expand
from archc.graph.graph import Graph
from archc.spec.load import loads_spec
from archc.testing.activations import check_activations
from archc.testing.placing import spec_text
from tests.plugins.kinds import EXAMPLES

pytestmark = pytest.mark.torch

GQA: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
ENCODER: dict[str, Any] = {"encoder": {}}
DISENTANGLED: dict[str, Any] = {"kind": "disentangled", "max_relative_positions": 6}
GENERAL: dict[str, Any] = {"num_heads": 2, "head_dim": 8, "score": "scaled_dot"}
WINDOW_CACHE: dict[str, Any] = {"cache": {"policy": "window", "window": 5, "sink_tokens": 2}}
BIRD: dict[str, Any] = {"num_heads": 2, "head_dim": 8, "qkv_bias": True, "block_size": 3}
LONG: dict[str, Any] = {"num_heads": 4, "head_dim": 8, "attention_window": 6}
SHARED: dict[str, Any] = {
    "mixers": {
        "local": {"kind": "gqa", **GQA, "sliding_window": 4},
        "global": {"kind": "gqa", **GQA},
        "reuse": {"extends": "global", "kv_from": "global"},
        "near": {"extends": "local", "kv_from": "local"},
    },
    "stack": {"num_layers": 6, "block": "pre_norm", "mixer": "local near global reuse*2 local", "ffn": "ffn"},
}
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a window": ("gqa", {**GQA, "sliding_window": 5}, {}),
    "a window with sinks of tokens": ("gqa", GQA, WINDOW_CACHE),
    "a window with learned sinks": ("gqa", {**GQA, "sliding_window": 5, "sink_logits": True}, {}),
    "a window and a soft cap": ("gqa", {**GQA, "sliding_window": 5, "attn_logit_softcapping": 3.0}, {}),
    "chunks": ("gqa", {**GQA, "attention_chunk_size": 5}, {}),
    "wide values": ("general_attention", {**GENERAL, "v_head_dim": 12}, {}),
    "narrow values": ("general_attention", {**GENERAL, "v_head_dim": 5}, {}),
    "one key-value head": ("gqa", {**GQA, "num_kv_heads": 1, "attn_logit_softcapping": 3.0}, {}),
    "one head": ("gqa", {"num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "sink_logits": True}, {}),
    "queries of a temperature": ("gqa", {**GQA, "query_temperature": {"scale": 0.1, "floor": 4}}, {}),
    "slopes in a window": ("gqa", {**GQA, "sliding_window": 5}, {"position": "alibi"}),
    "a prefix": ("gqa", GQA, {"stack": {"mask": "prefix"}}),
    "a prefix and slopes": ("gqa", GQA, {"stack": {"mask": "prefix"}, "position": "alibi"}),
    "a prefix and a bias": (
        "gqa",
        GQA,
        {"stack": {"mask": "prefix"}, "position": {"kind": "relative_bias", "num_buckets": 8, "max_distance": 16}},
    ),
    "rows of other layers": ("gqa", GQA, SHARED),
    "both ways": ("gqa", GQA, ENCODER),
    "both ways in a window": ("gqa", {**GQA, "sliding_window": 6}, ENCODER),
    "both ways with slopes": ("gqa", {**GQA, "sliding_window": 6}, {**ENCODER, "position": "alibi"}),
    "chosen blocks and wide keys": ("nsa", {**EXAMPLES["mixer.nsa"].keys, "v_head_dim": 8}, {}),
    "chosen blocks of one head": ("nsa", {**EXAMPLES["mixer.nsa"].keys, "num_kv_heads": 1, "v_head_dim": 8}, {}),
    "blocks of the best means": ("moba", EXAMPLES["mixer.moba"].keys, {}),
    "chosen latent rows": ("sparse_mla", EXAMPLES["mixer.sparse_mla"].keys, {}),
    "compressed entries": ("compressed_attention", EXAMPLES["mixer.compressed_attention"].keys, {}),
    "additive scores": ("general_attention", EXAMPLES["mixer.general_attention"].keys, {"position": "none"}),
    "additive scores both ways": (
        "general_attention",
        EXAMPLES["mixer.general_attention"].keys,
        {**ENCODER, "position": "none"},
    ),
    "relative positions": ("gqa", {**GQA, "num_kv_heads": 4}, {**ENCODER, "position": DISENTANGLED}),
    "to an encoder": ("gqa", GQA, {**ENCODER, "decoder": {}}),
    "latent rows in a window": (
        "mla",
        EXAMPLES["mixer.mla"].keys,
        WINDOW_CACHE,
    ),
    "blocks": ("local_global", {**BIRD, "num_random_blocks": 1}, {**ENCODER, "position": "learned"}),
    "drawn blocks": (
        "local_global",
        {**BIRD, "num_random_blocks": 1, "random_seed": 3},
        {**ENCODER, "position": "learned"},
    ),
    "windows alone": ("local_global", {**LONG, "global_tokens": 0}, {**ENCODER, "position": "learned"}),
    "windows and global tokens": (
        "local_global",
        {**LONG, "global_tokens": 2},
        {**ENCODER, "position": "learned"},
    ),
}
LENGTHS = (1, 5, 6, 12, 30)
"""One token, at and above a window, and numbers of blocks, whole and not."""


def graph_of(form: str) -> Graph:
    kind, keys, around = FORMS[form]
    return expand(loads_spec(spec_text("mixer", kind, keys, around)))


@pytest.mark.parametrize("form", FORMS)
def test_attention_keeps_what_the_graph_says(form: str):
    assert check_activations(graph_of(form), 24) == []


@pytest.mark.parametrize("form", FORMS)
def test_it_does_for_one_sequence(form: str):
    assert check_activations(graph_of(form), 23, one_row=True) == []


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "form",
    [
        "windows alone",
        "blocks",
        "chosen blocks and wide keys",
        "a window with learned sinks",
        "chunks",
        "both ways in a window",
        "drawn blocks",
        "rows of other layers",
    ],
)
def test_it_does_at_any_length(form: str, length: int):
    assert check_activations(graph_of(form), length) == []


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "kind",
    ["moba", "nsa", "sparse_mla", "compressed_attention", "local_global", "general_attention"],
)
def test_kinds_that_choose_do_at_any_length(kind: str, length: int):
    given = EXAMPLES[f"mixer.{kind}"]
    assert check_activations(expand(loads_spec(spec_text("mixer", kind, given.keys, given.around))), length) == []
