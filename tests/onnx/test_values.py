"""onnxruntime's numbers against torch's, however the tokens are cut into calls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

FAMILIES = ("llama", "gpt-oss", "deepseek-v3", "kimi-linear", "qwen3-next")
ARCHITECTURES = (*FAMILIES, "indexer", "granite-hybrid", "gqa keys", "mla and kda keys", "moe keys")
WAYS = {
    "whole": (2, (20,)),
    "prefill and decode": (1, (12, *[1] * 8)),
    "chunks": (2, (7, 5, 1, 4, 3)),
}
RAGGED = ((9, 5), (4, 6), (1, 1), (1, 0), (3, 5), (1, 1), (1, 2))
FLOAT32_ERROR = dict.fromkeys(ARCHITECTURES, 1e-5) | {"kimi-linear": 4e-5, "moe keys": 2e-5}
"""Largest difference of outputs that are about 4 large (25 for the experts); several times what was measured."""
FLOAT16_ERROR = {
    "llama": 1e-2,
    "gpt-oss": 1e-2,
    "deepseek-v3": 2e-2,
    "kimi-linear": 5e-2,
    "qwen3-next": 3e-2,
    "granite-hybrid": 3e-2,
}


def uniform_error(model: Any, batch: int, counts: tuple[int, ...]) -> float:
    talk = model.conversation(batch)
    ends = np.cumsum((0, *counts))
    got = [talk.step(model.ids[:batch, a:b]) for a, b in pairwise(ends)]
    return float(np.abs(np.concatenate(got, 1).astype(np.float64) - model.expected[:batch]).max())


def ragged_error(model: Any) -> float:
    """Rows of different lengths, padded on the right; one of them gets no token for a while."""
    talk = model.conversation(2)
    done, worst = [0, 0], 0.0
    for counts in RAGGED:
        # Padding is some other token, so that one which is let in shows.
        ids = np.full((2, max(counts)), 7)
        for row, count in enumerate(counts):
            ids[row, :count] = model.ids[row, done[row] : done[row] + count]
        y = talk.step(ids, np.array(counts)).astype(np.float64)
        for row, count in enumerate(counts):
            want = model.expected[row, done[row] : done[row] + count]
            worst = max(worst, float(np.abs(y[row, :count] - want).max(initial=0.0)))
            done[row] += count
    assert done == [20, 20]
    return worst


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_file_equals_torch(exported: Callable[..., Any], name: str, way: str) -> None:
    assert uniform_error(exported(name, "float32"), *WAYS[way]) < FLOAT32_ERROR[name]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_of_different_lengths_equal_torch(exported: Callable[..., Any], name: str) -> None:
    assert ragged_error(exported(name, "float32")) < FLOAT32_ERROR[name]


@pytest.mark.parametrize("name", FLOAT16_ERROR)
def test_float16_is_torch_up_to_rounding(exported: Callable[..., Any], name: str) -> None:
    model = exported(name, "float16")
    errors = [uniform_error(model, *way) for way in WAYS.values()] + [ragged_error(model)]
    assert max(errors) < FLOAT16_ERROR[name]
