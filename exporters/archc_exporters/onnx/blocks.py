"""Block-wise integer weights as onnxruntime's MatMulNBits, QMoE and GatherBlockQuantized read them.

A matrix has N outputs and K inputs. Each output's inputs are cut into blocks of ``block_size``; a block has one scale, in
the dtype of the activations, and perhaps one zero point: ``weight = (q - zero_point) * scale`` with q in 0 … 2**bits - 1.
Two 4-bit numbers share a byte, the earlier one in its low half.

Legend of shapes: R rows (outputs, of all experts together), K inputs, B blocks a row, S block size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from archc_exporters.onnx.arrays import Array

_CHUNK_ELEMENTS = 1 << 18
"""Numbers that are worked on at a time: a megabyte in float32, which stays in a core's cache."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """One quantised matrix.

    Attributes:
        packed: bytes, uint8 (R, B, S * bits / 8).
        scales: (R, B), in the dtype that was asked for.
        zero_points: bytes, uint8 (R, ceil(B * bits / 8)); None where every zero point is 2 ** (bits - 1).
    """

    packed: Array
    scales: Array
    zero_points: Array | None


def quantize(
    pieces: Iterable[Array],
    rows: int,
    columns: int,
    *,
    bits: int,
    block_size: int,
    symmetric: bool,
    scale_dtype: np.dtype[Any],
    turned: bool = False,
) -> Blocks:
    """Round a matrix (R, K), or (K, R) where it is ``turned``, to the nearest numbers of its blocks.

    ``pieces`` are its rows as they lie, a few at a time; of a turned one each piece holds whole blocks.
    Every weight is off by at most half its block's scale. Symmetric blocks use the whole range: the largest magnitude sits
    at the end that has one number more, unless a weight of the other sign would then be off by more.
    """
    assert columns % block_size == 0, f"{columns} inputs are no whole blocks of {block_size}"
    blocks = columns // block_size
    packed = np.empty((rows, blocks, block_size * bits // 8), np.uint8)
    scales = np.empty((rows, blocks), scale_dtype)
    points = None if symmetric else np.empty((rows, blocks), np.uint8)
    for part, x in _chunks(pieces, block_size, turned):
        shape = scales[part].shape
        q, scale, zero = _round(x, bits, symmetric, scale_dtype)
        scales[part] = scale.reshape(shape)
        packed[part] = _paired(q, bits).T.reshape(*shape, -1)
        if points is not None:
            points[part] = zero.reshape(shape)
    return Blocks(packed, scales, None if points is None else pack(_even(points, bits), bits))


def _chunks(pieces: Iterable[Array], block_size: int, turned: bool) -> Iterator[tuple[tuple[slice, slice], Array]]:
    """((rows, blocks), their numbers in float32 with a block in each column), a cache-full at a time.

    Columns, because numpy is slow along a short last axis.
    """
    place = 0
    for piece in pieces:
        height, width = piece.shape
        if turned:
            step = max(64, _CHUNK_ELEMENTS // block_size)
            for first in range(0, height, block_size):
                block = slice((place + first) // block_size, (place + first) // block_size + 1)
                for start in range(0, width, step):
                    rows = slice(start, min(start + step, width))
                    yield (rows, block), piece[first : first + block_size, rows].astype(np.float32)
        else:
            step = max(1, _CHUNK_ELEMENTS // width)
            for start in range(0, height, step):
                numbers = piece[start : start + step].reshape(-1, block_size).T
                rows = slice(place + start, min(place + start + step, place + height))
                yield (rows, slice(None)), np.ascontiguousarray(numbers, np.float32)
        place += height


def _round(x: Array, bits: int, symmetric: bool, scale_dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """(numbers uint8, scales, zero points) of blocks that stand in the columns of a float32 matrix."""
    low, high = x.min(0), x.max(0)
    top = (1 << bits) - 1
    if symmetric:
        half = 1 << (bits - 1)
        # Zero point half: half numbers on one side, half - 1 on the other, which rounding reaches to half - 1/2.
        longer = np.where(high > -low, high, low)
        shorter = np.where(high > -low, -low, high)
        size = np.maximum(np.abs(longer) / half, shorter / (half - 0.5))
        scales = outward(np.where(longer > 0, -size, size), scale_dtype)
        zero = np.full(scales.shape, half, np.uint8)
    else:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scales = outward((high - low) / top, scale_dtype)
        zero = (-low * _inverse(scales) + 0.5).astype(np.uint8)
    q = x * _inverse(scales)
    # Rounds half up: numbers are never negative once the zero point is on them, so cutting the fraction off will do.
    q += zero.astype(np.float32) + np.float32(0.5)
    np.minimum(q, top, out=q)
    return q.astype(np.uint8), scales, zero


def _inverse(scales: Array) -> Array:
    """1 / scale in float32; 0 for a block of zeros."""
    wide = scales.astype(np.float32)
    return np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)


def outward(scales: Array, dtype: np.dtype[Any]) -> Array:
    """Round away from zero, so that the ends of a block stay within half a step of a number."""
    rounded = scales.astype(dtype)
    if dtype.itemsize == 2:
        # The bits of a magnitude count upwards in every 16-bit float.
        rounded.view(np.uint16)[...] += np.abs(rounded.astype(np.float32)) < np.abs(scales)
    return rounded


def _paired(q: Array, bits: int) -> Array:
    """``pack`` along the first axis."""
    return q if bits == 8 else q[0::2] | (q[1::2] << 4)


def pack(numbers: Array, bits: int) -> Array:
    """Numbers of ``bits`` bits as bytes: pairs along the last axis for 4 bits, themselves for 8."""
    return numbers if bits == 8 else numbers[..., 0::2] | (numbers[..., 1::2] << 4)


def unpack(packed: Array, bits: int) -> Array:
    """What ``pack`` was given."""
    if bits == 8:
        return packed
    return np.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], -1)


def _even(points: Array, bits: int) -> Array:
    """Zero points with one more in a row where the last byte would be half empty."""
    odd = bits == 4 and points.shape[-1] % 2
    return np.pad(points, [(0, 0)] * (points.ndim - 1) + [(0, 1)]) if odd else points


def dequantize(blocks: Blocks, bits: int) -> Array:
    """The matrix (R, K) in float32 that onnxruntime computes with."""
    rows, count = blocks.scales.shape
    zero = np.full((rows, count), 1 << (bits - 1), np.uint8)
    if blocks.zero_points is not None:
        zero = unpack(blocks.zero_points, bits)[:, :count]
    numbers = unpack(blocks.packed, bits).astype(np.float32) - zero.astype(np.float32)[..., None]
    return (numbers * blocks.scales.astype(np.float32)[..., None]).reshape(rows, -1)
