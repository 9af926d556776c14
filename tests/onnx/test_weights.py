"""Weights on their way into a file: joined, cut, cast, and read in pieces."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from archc_exporters.onnx.weights import joined

pytestmark = pytest.mark.onnx


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_tensors_are_joined_along_an_axis(axis: int) -> None:
    shape = [4, 4, 4]
    arrays: list[np.ndarray] = []
    for width in (1, 3, 2):
        shape[axis] = width
        arrays.append(np.random.default_rng(width).standard_normal(shape).astype(np.float16))
    whole = joined("whole", [ir.tensor(array) for array in arrays], axis)
    expected = np.concatenate(arrays, axis)
    assert whole.name == "whole"
    assert whole.dtype == ir.DataType.FLOAT16
    assert whole.shape.numpy() == expected.shape
    assert np.array_equal(whole.numpy(), expected)
    assert whole.tobytes() == expected.tobytes()
