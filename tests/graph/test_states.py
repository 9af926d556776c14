"""What a layer keeps: used and allocated shapes, growth, and the rule for the rows of a full cache."""

from __future__ import annotations

import pytest

from archc.graph.graph import state_elements
from tests.graph.examples import GQA, KDA, MLA, SINKS, WINDOWED, small

CHUNKED = "{kind: gqa, num_heads: 4, num_kv_heads: 2, head_dim: 8, attention_chunk_size: 6}"
SINKS_IN_A_WINDOW = SINKS.replace("head_dim", "sliding_window: 4, head_dim")


def state(mixer, ending, **words):
    return small(mixer, layers=1, **words).states()[f"layers.0.mixer.{ending}"]


def text(shape):
    return [str(dim) for dim in shape]


@pytest.mark.parametrize(
    ("mixer", "ending", "used", "allocated", "growth"),
    [
        (GQA, "attention.key", "batch 2 past+seq 8", "batch 2 capacity 8", "append"),
        (WINDOWED, "attention.value", "batch 2 min(past+seq,4) 8", "batch 2 4 8", "ring"),
        (CHUNKED, "attention.key", "batch 2 min(past+seq,6) 8", "batch 2 6 8", "ring"),
        (MLA, "attention.latent", "batch 1 past+seq 16", "batch 1 capacity 16", "append"),
        (KDA, "delta_rule.recurrent_state", "batch 2 8 8", "batch 2 8 8", "fixed"),
        (KDA, "conv.conv_state", "batch 3 48", "batch 3 48", "fixed"),
    ],
)
def test_shapes_are_what_the_formula_needs_and_what_a_runtime_holds(mixer, ending, used, allocated, growth):
    found = state(mixer, ending)
    assert [dim.replace(" ", "") for dim in text(found.used)] == used.split()
    assert [dim.replace(" ", "") for dim in text(found.allocated)] == allocated.split()
    assert found.growth == growth


@pytest.mark.parametrize(
    ("mixer", "max_model_len", "rows"),
    [(GQA, 1, 8), (GQA, 8, 8), (GQA, 9, 16), (SINKS, 7, 8), (SINKS, 8, 16), (SINKS, 64, 72), (MLA, 64, 64)],
)
def test_a_full_cache_has_a_row_more_for_a_sink_and_a_multiple_of_eight(mixer, max_model_len, rows):
    graph = small(mixer)
    assert graph.capacity(max_model_len) == rows
    shapes = {graph.state_shape(s, batch=3, max_model_len=max_model_len)[:3] for s in graph.states().values()}
    assert shapes == {(3, 1 if mixer is MLA else 2, rows)}


def test_one_sink_in_a_model_reserves_a_row_in_every_full_cache():
    graph = small(GQA, SINKS, mixer="(one two)*")
    assert graph.reserved_rows() == 1
    assert {graph.state_shape(s, batch=1, max_model_len=8)[2] for s in graph.states().values()} == {16}


def test_a_sink_over_a_ring_reserves_nothing():
    graph = small(SINKS_IN_A_WINDOW)
    assert graph.reserved_rows() == 0
    assert graph.capacity(8) == 8
    assert {graph.state_shape(s, batch=1, max_model_len=8)[2] for s in graph.states().values()} == {4}


@pytest.mark.parametrize(
    ("mixer", "ending", "past", "seq", "elements"),
    [
        (GQA, "attention.key", 5, 2, 3 * 2 * 7 * 8),
        (WINDOWED, "attention.key", 1, 2, 3 * 2 * 3 * 8),
        (WINDOWED, "attention.key", 5, 2, 3 * 2 * 4 * 8),
        (MLA, "attention.latent", 5, 2, 3 * 7 * 16),
        (KDA, "delta_rule.recurrent_state", 5, 2, 3 * 2 * 8 * 8),
    ],
)
def test_used_elements_follow_the_tokens_there_are(mixer, ending, past, seq, elements):
    found = state(mixer, ending)
    assert state_elements(found, {"batch": 3, "past": past, "seq": seq, "capacity": 10**6}) == elements


def test_allocated_elements_follow_the_capacity():
    env = {"batch": 3, "past": 0, "seq": 1, "capacity": 16}
    assert state_elements(state(GQA, "attention.key"), env, allocated=True) == 3 * 2 * 16 * 8


def test_dtypes_follow_the_cache_policy_of_the_mixer_that_keeps_them():
    policy = "cache: {policy: full, dtype: float8_e4m3fn, state_dtype: bfloat16}"
    own = KDA.replace("head_dim", "cache: {dtype: float16}, head_dim")
    states = small(GQA, own, mixer="one two", layers=2, more=policy).states()
    assert {name: s.dtype for name, s in states.items()} == {
        "layers.0.mixer.attention.key": "float8_e4m3fn",
        "layers.0.mixer.attention.value": "float8_e4m3fn",
        "layers.1.mixer.conv.conv_state": "float16",
        "layers.1.mixer.delta_rule.recurrent_state": "float32",
    }
    assert state(KDA, "conv.conv_state").dtype == "model"
    assert state(KDA, "delta_rule.recurrent_state", more=policy).dtype == "bfloat16"


def test_states_are_named_once_a_layer_in_order_of_execution():
    assert list(small(GQA, KDA, mixer="two one", layers=2).states()) == [
        "layers.0.mixer.conv.conv_state",
        "layers.0.mixer.delta_rule.recurrent_state",
        "layers.1.mixer.attention.key",
        "layers.1.mixer.attention.value",
    ]
