"""Caches with a row every few tokens: made by what their dimension says, counted to the byte, and right in one buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from archc_exporters.onnx.placement.copies import copies
from archc_exporters.onnx.placement.predict import predict
from archc_exporters.onnx.states import tokens_a_row
from archc_exporters.runtime.folder import Cache
from tests.onnx.conftest import VOCABULARY
from tests.runtime.test_engine import ALONE, RAGGED, pair

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

NAME = "chosen blocks"
NAMES = (NAME, "compressed")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("script", [ALONE, RAGGED], ids=["alone", "ragged"])
def test_caches_that_lie_still_give_the_bits_of_copied_ones(
    ready: Callable[..., Any], name: str, dtype: str, script: tuple[tuple[tuple[int, ...], bool], ...]
) -> None:
    engine, talk = pair(ready(name, dtype), len(script[0][0]))
    rng = np.random.default_rng(7)
    for counts, _ in script:
        ids, valid = rng.integers(0, VOCABULARY, (len(counts), max(counts))), np.array(counts)
        got, want = engine.step(ids, valid, wanted=True), talk.step(ids, valid)
        assert np.array_equal(got, want[np.arange(len(counts)), valid - 1])


def test_every_cache_is_as_long_as_its_dimension_says_and_counted_so(ready: Callable[..., Any]) -> None:
    engine, talk = pair(ready(NAME, "float32"), 2)
    assert engine.capacity == 32
    rows = {
        cache.input: view.shape[2] for cache, view in zip(engine.contract.caches, engine.caches().values(), strict=True)
    }
    assert rows["past_key_values.0.compressed_key"] == 16
    assert rows["past_key_values.0.pending_key"] == 3
    assert rows["past_key_values.1.block_key"] == 8
    assert rows["past_key_values.2.compressed_value"] == 16
    assert rows["past_key_values.3.block_key"] == 7
    held = sum(array.nbytes for array in talk.caches.values())
    assert engine.contract.cache_bytes(batch=2, capacity=engine.capacity) == held


def test_a_dimension_says_how_many_tokens_a_row_has() -> None:
    dims = ("capacity", "ceil((capacity)/16)", "batch", "window_capacity_8", 4)
    assert [tokens_a_row(dim) for dim in dims] == [1, 16, None, None, None]
    words = {"input": "a", "output": "b", "dtype": "float16", "growth": "append"}
    cache = Cache(**words, shape=("batch", 2, "ceil((capacity)/3)", 4), bytes_per_token=5, bytes_per_sequence=0)
    assert cache.allocated(batch=2, capacity=16) == (2, 2, 6, 4)
    assert cache.bytes(16) == 2 * 6 * 4 * 2
    with pytest.raises(ValueError, match="pattern"):
        Cache(**words, shape=("batch", "half"), bytes_per_token=0, bytes_per_sequence=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_cuda_nothing_but_arithmetic_of_shapes_leaves_the_gpu(tmp_path: Any, name: str, dtype: str) -> None:
    onnx = pytest.importorskip("onnx")
    from archc_exporters.onnx.export import export
    from tests.onnx.conftest import graph_of

    export(graph_of(name), tmp_path / "out", dtype=dtype, provider="cuda", check=False)
    root = predict(onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False), "cuda")
    assert {site.reason for site in root.all_sites() if site.provider != "cuda"} == {"cpu-preferred"}
    assert not list(copies(root))
