"""Cache policy window in a file: first tokens and a ring, against torch, however the tokens are cut into calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.onnx.test_values import WAYS, ragged_error, uniform_error

pytestmark = [pytest.mark.onnx, pytest.mark.torch]

ERRORS = {"float32": 1e-5, "float16": 2e-2}
"""Largest difference of outputs that are about 4 large."""


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_forgets_equals_torch(exported: Callable[..., Any], way: str, dtype: str) -> None:
    assert uniform_error(exported("forgetting", dtype), *WAYS[way]) < ERRORS[dtype]


@pytest.mark.parametrize("dtype", ERRORS)
def test_rows_of_different_lengths_forget_alike(exported: Callable[..., Any], dtype: str) -> None:
    assert ragged_error(exported("forgetting", dtype)) < ERRORS[dtype]


def test_a_cache_holds_first_tokens_and_window_and_no_more(exported: Callable[..., Any]) -> None:
    model = exported("forgetting", "float32")
    caches = model.conversation(2).caches
    by_layer = {name.split(".")[1]: cache.shape[2] for name, cache in caches.items()}
    assert by_layer == {"0": 7, "1": 3, "2": 7, "3": 7, "4": 7, "5": 2}
