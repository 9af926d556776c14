"""One float weight as the initializers of its blocks, made when the file is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from archc.errors import ArchcError
from archc_exporters.onnx.blocks import Blocks, quantize, unpack
from archc_exporters.onnx.target import Quantization
from archc_exporters.onnx.weights import NUMPY_DTYPES, Array, Reader, StreamedTensor

UINT8 = ir.DataType.UINT8


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
    """A float weight, quantised when its bytes are asked for. What is small is kept until it is asked for in turn.

    Raises (when read):
        ArchcError: a weight is infinite or not a number.
    """

    def __init__(self, tensor: ir.TensorProtocol, quant: Quantization, matrix: Matrix) -> None:
        self._tensor, self._quant, self.matrix = tensor, quant, matrix
        self._kept: dict[str, Array] = {}

    @contextmanager
    def opened(self) -> Iterator[Reader]:
        """A reader of the bytes of the numbers by the weight's first dimension; rows are quantised as they are read."""
        tensor, matrix = self._tensor, self.matrix
        if matrix.turned or not isinstance(tensor, StreamedTensor):
            blocks = self._blocks()
            self._keep(blocks.scales, blocks.zero_points)
            whole = blocks.packed.reshape(matrix.rows if matrix.turned else tensor.shape.numpy()[0], -1)
            del blocks
            yield lambda start, stop: whole[start:stop]
            return
        each = matrix.rows // tensor.rows
        parts: list[Blocks] = []
        with tensor.opened() as read:

            def rows(start: int, stop: int) -> Array:
                piece = read(start, stop).reshape(-1, matrix.columns)
                blocks = self._quantized([piece], (stop - start) * each)
                parts.append(replace(blocks, packed=blocks.packed[:0]))
                return blocks.packed.reshape(stop - start, -1)

            yield rows
        if sum(len(part.scales) for part in parts) == matrix.rows:
            points = [part.zero_points for part in parts if part.zero_points is not None]
            self._keep(np.concatenate([part.scales for part in parts]), np.concatenate(points) if points else None)

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

    def _keep(self, scales: Array, points: Array | None) -> None:
        self._kept = {"scales": scales} | ({} if points is None else {"points": points})

    def _blocks(self) -> Blocks:
        matrix, tensor = self.matrix, self._tensor
        width = matrix.rows if matrix.turned else matrix.columns
        if isinstance(tensor, StreamedTensor):
            pieces = tensor.pieces(matrix.block_size if matrix.turned else 1)
        else:
            pieces = iter([tensor.numpy()])
        return self._quantized((piece.reshape(-1, width) for piece in pieces), matrix.rows)

    def _quantized(self, pieces: Iterable[Array], rows: int) -> Blocks:
        with np.errstate(invalid="ignore", over="ignore"):
            blocks = quantize(
                pieces,
                rows,
                self.matrix.columns,
                bits=self._quant.bits,
                block_size=self.matrix.block_size,
                symmetric=self._quant.symmetric,
                scale_dtype=NUMPY_DTYPES[self._tensor.dtype],
                turned=self.matrix.turned,
            )
        if not np.isfinite(blocks.scales.astype(np.float32)).all():
            raise ArchcError(f"{self._tensor.name} has values that are not finite, which no block of integers holds")
        return blocks


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
    unit_rows = tensor.unit_rows if isinstance(tensor, StreamedTensor) and not matrix.turned else 1
    by_row = partial(_shaped, source.opened, tuple(packed[1:]))
    parts = [
        _register(graph, StreamedTensor(f"{name}.q{quant.bits}", packed, UINT8, unit_rows=unit_rows, opened=by_row)),
        initializer(graph, f"{name}.scales", (*rows, matrix.blocks), tensor.dtype, source.scales),
    ]
    if not quant.symmetric:
        shape = (*rows, -(-matrix.blocks * quant.bits // 8))
        parts.append(initializer(graph, f"{name}.zero_points", shape, UINT8, source.points))
    return Stored(
        parts[0], parts[1], parts[2] if len(parts) > 2 else None, source, sum(bytes_of(part) for part in parts)
    )


@contextmanager
def _shaped(opened: Callable[[], AbstractContextManager[Reader]], row: tuple[int, ...]) -> Iterator[Reader]:
    """The same reader, its rows in a shape."""
    with opened() as read:
        yield lambda start, stop: read(start, stop).reshape(-1, *row)


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
