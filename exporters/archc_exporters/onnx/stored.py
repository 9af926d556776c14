"""One float weight as the initializers of its blocks, made when the file is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import lcm

import numpy as np
import onnx_ir as ir

from archc_exporters.onnx.blocks import Blocks, quantize, unpack
from archc_exporters.onnx.target import Quantization
from archc_exporters.onnx.weights import NUMPY_DTYPES, Array, StreamedTensor

UINT8 = ir.DataType.UINT8
_PIECE_BYTES = 8 << 20
_MOST_PIECES = 32
"""A weight that is transposed on the way is passed over once a piece, so pieces of large ones are larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """How the numbers of a weight lie, and in what blocks: R rows of K inputs, of all experts together.

    Attributes:
        rows: R.
        columns: K.
        turned: the weight is (K, R).
        block_size: inputs that share a scale; K is a multiple of it.
    """

    rows: int
    columns: int
    turned: bool
    block_size: int

    @property
    def blocks(self) -> int:
        """Blocks in a row."""
        return self.columns // self.block_size


@dataclass(frozen=True, slots=True)
class Stored:
    """The initializers of one quantised weight.

    Attributes:
        packed: bytes, uint8.
        scales: in the dtype of the weight.
        zero_points: bytes, uint8; None where blocks are symmetric.
        source: what they are made of.
        bytes: of all of them.
    """

    packed: ir.Value
    scales: ir.Value
    zero_points: ir.Value | None
    source: BlockSource
    bytes: int


class BlockSource:
    """A float weight, quantised when its bytes are asked for. What is small is kept until it is asked for in turn."""

    def __init__(self, tensor: ir.TensorProtocol, quant: Quantization, matrix: Matrix) -> None:
        self._tensor, self._quant, self.matrix = tensor, quant, matrix
        self._kept: dict[str, Array] = {}

    def packed(self) -> Array:
        """Bytes of the numbers, (R, B, block_size * bits / 8)."""
        blocks = self._blocks()
        self._kept["scales"] = blocks.scales
        if blocks.zero_points is not None:
            self._kept["points"] = blocks.zero_points
        return blocks.packed

    def scales(self) -> Array:
        """(R, B)."""
        kept = self._kept.pop("scales", None)
        return self._blocks().scales if kept is None else kept

    def points(self) -> Array:
        """Bytes of the zero points, (R, ceil(B * bits / 8))."""
        kept = self._kept.pop("points", None)
        if kept is None:
            kept = self._blocks().zero_points
        assert kept is not None
        return kept

    def points_by_byte(self) -> Array:
        """Zero points of a byte each, (R, B)."""
        return unpack(self.points(), self._quant.bits)[:, : self.matrix.blocks]

    def _blocks(self) -> Blocks:
        matrix = self.matrix
        return quantize(
            _pieces(self._tensor, matrix),
            matrix.rows,
            matrix.columns,
            bits=self._quant.bits,
            block_size=matrix.block_size,
            symmetric=self._quant.symmetric,
            scale_dtype=NUMPY_DTYPES[self._tensor.dtype],
            turned=matrix.turned,
        )


def _pieces(tensor: ir.TensorProtocol, matrix: Matrix) -> Iterator[Array]:
    """The numbers of a weight as rows of its matrix, a few MiB at a time; whole blocks of a turned one."""
    width = matrix.rows if matrix.turned else matrix.columns
    if not isinstance(tensor, StreamedTensor):
        yield tensor.numpy().reshape(-1, width)
        return
    unit = lcm(tensor.unit_rows, matrix.block_size if matrix.turned else 1)
    unit_bytes = max(1, tensor.nbytes * unit // tensor.rows)
    step = unit * max(1, max(_PIECE_BYTES, tensor.nbytes // _MOST_PIECES) // unit_bytes)
    with tensor.opened() as read:
        for start in range(0, tensor.rows, step):
            yield read(start, min(start + step, tensor.rows)).reshape(-1, width)


def store(
    graph: ir.Graph,
    weight: ir.Value,
    quant: Quantization,
    matrix: Matrix,
    *,
    packed: Sequence[int],
    rows: Sequence[int],
) -> Stored:
    """Initializers for a weight: its bytes in the shape ``packed``, scales and zero points by ``rows``."""
    tensor, name = weight.const_value, weight.name
    assert tensor is not None
    source = BlockSource(tensor, quant, matrix)
    parts = [
        initializer(graph, f"{name}.q{quant.bits}", packed, UINT8, source.packed),
        initializer(graph, f"{name}.scales", (*rows, matrix.blocks), tensor.dtype, source.scales),
    ]
    if not quant.symmetric:
        shape = (*rows, -(-matrix.blocks * quant.bits // 8))
        parts.append(initializer(graph, f"{name}.zero_points", shape, UINT8, source.points))
    return Stored(
        parts[0], parts[1], parts[2] if len(parts) > 2 else None, source, sum(bytes_of(part) for part in parts)
    )


def bytes_of(value: ir.Value) -> int:
    """Bytes of an initializer."""
    assert value.const_value is not None
    return value.const_value.nbytes


def initializer(
    graph: ir.Graph, name: str, shape: Sequence[int], dtype: ir.DataType, make: Callable[[], Array]
) -> ir.Value:
    """A new initializer whose numbers are made when it is written."""

    @contextmanager
    def opened() -> Iterator[Callable[[int, int], Array]]:
        whole = np.ascontiguousarray(make()).reshape(tuple(shape))
        yield lambda start, stop: whole[start:stop]

    return _register(graph, StreamedTensor(name, shape, dtype, unit_rows=1, opened=opened))


def constant(graph: ir.Graph, name: str, *numbers: int) -> ir.Value:
    """A vector of int64; one for all equal ones of a name."""
    if name in graph.initializers:
        return graph.initializers[name]
    return _register(graph, ir.Tensor(np.array(numbers, np.int64), name=name))


def _register(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    shape = tensor.shape.numpy()
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(shape), const_value=tensor)
    graph.register_initializer(value)
    return value
