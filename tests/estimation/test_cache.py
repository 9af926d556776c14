"""Used, allocated and paged bytes, and the dtypes that they are counted in."""

from __future__ import annotations

import math

import pytest

from archc.errors import ArchcError, SpecError
from archc.estimation.estimate import estimate
from archc.expansion import expand
from archc.graph.graph import resolve_dtype
from archc.spec.load import load_spec, shipped_specs
from archc.units import DTYPE_BITS


@pytest.mark.parametrize("name", shipped_specs())
def test_used_bytes_fit_in_allocated_and_in_paged_ones(name: str):
    graph = expand(load_spec(name))
    for length in (1, 7, 8, 17, 128, 129, 1000):
        for batch in (1, 3):
            cache = estimate(graph, batch_size=batch, max_model_len=length).cache
            assert cache.used_bytes <= cache.allocated_bytes
            assert cache.used_bytes <= cache.paged_bytes
            one_token_blocks = estimate(graph, batch_size=batch, max_model_len=length, block_size=1).cache
            assert one_token_blocks.paged_bytes == cache.used_bytes


@pytest.mark.parametrize("name", shipped_specs())
def test_allocated_bytes_are_those_of_the_state_tensors(name: str):
    graph = expand(load_spec(name))
    expected_bytes = 0
    for state in graph.states().values():
        shape = graph.state_shape(state, batch=3, max_model_len=1000)
        expected_bytes += math.prod(shape) * DTYPE_BITS[resolve_dtype(state.dtype, graph.dtype)] // 8
    assert estimate(graph, batch_size=3, max_model_len=1000).cache.allocated_bytes == expected_bytes


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "kimi-linear-48b-a3b"])
def test_paging_is_exact_where_blocks_are_full(name: str):
    cache = estimate(name, max_model_len=4096, block_size=16).cache
    assert cache.used_bytes == cache.paged_bytes == cache.allocated_bytes


def test_a_started_block_is_a_whole_block_and_a_fixed_state_is_never_rounded():
    by_name = {kind.name: kind for kind in estimate("kimi-linear-48b-a3b", max_model_len=17).cache.by_kind}
    assert by_name["mla"].paged_bytes == 32 * by_name["mla"].bytes_per_token
    assert by_name["mla"].allocated_bytes == 24 * by_name["mla"].bytes_per_token
    assert by_name["kda"].used_bytes == by_name["kda"].paged_bytes == by_name["kda"].allocated_bytes


def test_a_window_stops_the_growth_but_not_the_allocation():
    windowed = next(kind for kind in estimate("gpt-oss-20b", max_model_len=64).cache.by_kind if kind.window)
    assert (windowed.bytes_per_token, windowed.window) == (0, 128)
    assert windowed.used_bytes == 64 * windowed.bytes_per_token_below_windows
    assert windowed.allocated_bytes == 128 * windowed.bytes_per_token_below_windows


def test_the_cache_dtype_rules_keys_and_columns_but_not_recurrent_states():
    default = estimate("kimi-linear-48b-a3b").cache.to_json()
    narrow = estimate("kimi-linear-48b-a3b", kv_cache_dtype="fp8").cache.to_json()
    assert narrow["bytes_per_token"] * 2 == default["bytes_per_token"]
    assert narrow["convolution_bytes_per_sequence"] * 2 == default["convolution_bytes_per_sequence"]
    assert narrow["recurrent_bytes_per_sequence"] == default["recurrent_bytes_per_sequence"]
    half_byte = estimate("kimi-linear-48b-a3b", kv_cache_dtype="int4").cache
    assert half_byte.bytes_per_token * 4 == default["bytes_per_token"]


def test_the_weight_dtype_leaves_fixed_weights_alone():
    wide, narrow = (estimate("kimi-linear-48b-a3b", dtype=dtype).weights for dtype in ("f32", "bf16"))
    fixed_bytes = narrow.by_dtype["float32"]
    assert wide.bytes - fixed_bytes == 2 * (narrow.bytes - fixed_bytes)
    assert wide.by_dtype == {"float32": wide.bytes}


def test_states_in_a_batch_are_one_for_each_sequence():
    one, four = (estimate("kimi-linear-48b-a3b", batch_size=batch, max_model_len=100).cache for batch in (1, 4))
    assert (four.used_bytes, four.allocated_bytes, four.paged_bytes) == (
        4 * one.used_bytes,
        4 * one.allocated_bytes,
        4 * one.paged_bytes,
    )


@pytest.mark.parametrize(
    "options",
    [{"dtype": "bf17"}, {"kv_cache_dtype": "complex64"}, {"batch_size": 0}, {"max_model_len": -1}, {"block_size": 0}],
    ids=str,
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, int]):
    with pytest.raises(ArchcError, match=next(iter(options))):
        estimate("tiny-llama", **options)  # type: ignore[arg-type]


def test_a_name_that_is_not_shipped_gets_a_near_one():
    with pytest.raises(SpecError, match="kimi-linear-48b-a3b"):
        estimate("kimi-linear-48b")
