"""Blocks of integer weights: how far off a weight is, pieces against the whole, and what can't be rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("onnxruntime")

from archc.errors import ArchcError
from archc_exporters.onnx.blocks import dequantize, quantize
from archc_exporters.onnx.stored import BlockSource, Matrix
from archc_exporters.onnx.target import BLOCK_SIZES, Quantization
from archc_exporters.onnx.weights import StreamedTensor

pytestmark = pytest.mark.onnx


def matrix_of(rows: int, columns: int, dtype: Any = np.float32) -> np.ndarray:
    """Normal numbers, with blocks that are all zero, all of one sign, and lopsided."""
    matrix = np.random.default_rng(5).standard_normal((rows, columns)).astype(np.float32)
    matrix[0], matrix[1], matrix[2] = 0, np.abs(matrix[1]), matrix[2] - 0.9
    return matrix.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("bits", [4, 8])
def test_no_weight_is_off_by_more_than_half_a_step(bits: int, block_size: int, symmetric: bool, dtype: Any) -> None:
    matrix = matrix_of(37, 384, dtype)
    kind: dict[str, Any] = {"bits": bits, "block_size": block_size, "symmetric": symmetric}
    blocks = quantize([matrix], 37, 384, **kind, scale_dtype=np.dtype(dtype))
    steps = np.abs(blocks.scales.astype(np.float32)).repeat(block_size, 1)
    error = np.abs(dequantize(blocks, bits) - matrix.astype(np.float32))
    assert (error <= steps * (0.5 + 1e-4)).all()
    assert (blocks.zero_points is None) == symmetric
    largest = np.abs(matrix.astype(np.float32)).max()
    assert steps.max() < largest * (2.1 / (1 << bits) if symmetric else 2.2 / ((1 << bits) - 1))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
def test_pieces_give_what_the_whole_gives(symmetric: bool, turned: bool) -> None:
    matrix = matrix_of(48, 160)
    kind: dict[str, Any] = {"bits": 4, "block_size": 32, "symmetric": symmetric, "scale_dtype": np.dtype(np.float32)}
    whole = quantize([matrix], 48, 160, **kind)
    stored = matrix.T if turned else matrix
    pieces = [stored[at : at + 32] for at in range(0, len(stored), 32)]
    parts = quantize(pieces, 48, 160, **kind, turned=turned)
    assert (parts.packed == whole.packed).all()
    assert (parts.scales == whole.scales).all()
    assert symmetric or (parts.zero_points == whole.zero_points).all()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_weight_that_is_not_finite_is_an_error(symmetric: bool, dtype: Any, number: float) -> None:
    matrix = matrix_of(16, 64, dtype)
    matrix[7, 9] = number
    quant = Quantization(bits=4, symmetric=symmetric)
    source = BlockSource(
        ir.tensor(matrix, name="the.weight"), quant, Matrix(rows=16, columns=64, turned=False, block_size=32)
    )
    with pytest.raises(ArchcError, match=r"the\.weight has values that are not finite"):
        source.scales()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_streamed_weight_is_read_in_pieces_and_its_scales_once(symmetric: bool, turned: bool) -> None:
    stack = matrix_of(6 * 20, 64).reshape(6, 20, 64)
    stored, read_rows = (stack.reshape(120, 64).T if turned else stack), list[tuple[int, int]]()

    @contextmanager
    def opened() -> Iterator[Callable[[int, int], np.ndarray]]:
        def read(start: int, stop: int) -> np.ndarray:
            read_rows.append((start, stop))
            return stored[start:stop]

        yield read

    tensor = StreamedTensor("w", stored.shape, ir.DataType.FLOAT, unit_rows=2, opened=opened)
    quant = Quantization(bits=4, block_size=16, symmetric=symmetric)
    source = BlockSource(tensor, quant, Matrix(rows=120, columns=64, turned=turned, block_size=16))
    kind: dict[str, Any] = {"bits": 4, "block_size": 16, "symmetric": symmetric, "scale_dtype": stack.dtype}
    whole = quantize([stack.reshape(120, 64)], 120, 64, **kind)
    with source.opened() as read:
        halves = [read(0, 50), read(50, 120)] if turned else [read(0, 2), read(2, 6)]
    assert (np.concatenate(halves).reshape(120, 4, 8) == whole.packed).all()
    assert turned or read_rows == [(0, 2), (2, 6)]
    count = len(read_rows)
    assert (source.scales() == whole.scales).all()
    assert symmetric or (source.points() == whole.zero_points).all()
    assert len(read_rows) == count
    # What was handed out is not kept: the next reader has it made again.
    assert (source.scales() == whole.scales).all()
    assert len(read_rows) > count
