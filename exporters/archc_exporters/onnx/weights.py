"""Initializers that are read, transformed and rounded while they are written, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import lcm
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from archc.errors import ArchcError
from archc.ir.values import Param
from archc_exporters.onnx.arrays import DTYPES, NUMPY_DTYPES, Array, is_finite_float16, rounded, transposed
from archc_exporters.onnx.transforms import Piecewise, Rows, Transform, Transposed

__all__ = [
    "DTYPES",
    "NUMPY_DTYPES",
    "Array",
    "Reader",
    "StreamedTensor",
    "Transform",
    "WeightSource",
    "computed_tensor",
    "joined",
    "lazy_tensor",
    "transposed",
]

_PIECE_BYTES = 8 << 20
_MOST_PASSES = 32
"""Where every piece costs a pass over the whole source, pieces of large tensors are larger, so that there are no more."""

Reader = Callable[[int, int], Array]
"""Rows [start, stop) of a tensor, contiguous and in its dtype."""


class WeightSource(Protocol):
    """Gives one parameter when it is needed, in whatever floating dtype it is stored."""

    def read(self, name: str, param: Param) -> Array:
        """The whole parameter; it may be a view of a file."""
        ...

    def release(self, name: str) -> None:
        """What was read of it need not stay in memory; arrays that were given remain readable."""
        ...


class StreamedTensor(ir.LazyTensor):
    """A tensor that ``opened`` gives rows of; written in pieces of a few MiB, and whole only where somebody asks for an array.

    ``unit_rows`` is how many rows are made together: readers are asked for multiples of it. A scalar counts as one row.
    ``reads_all`` says that every piece costs a pass over all that the tensor is made from.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: ir.DataType,
        *,
        unit_rows: int,
        reads_all: bool = False,
        opened: Callable[[], Any],
    ) -> None:
        super().__init__(self._whole, dtype=dtype, shape=ir.Shape(list(shape)), name=name)
        self.unit_rows, self.reads_all = max(1, unit_rows), reads_all
        self.opened = opened
        """Makes a context whose value is a ``Reader``; what it holds is let go when the context ends."""

    @property
    def rows(self) -> int:
        """Size of the first dimension."""
        shape = self.shape.numpy()
        return shape[0] if shape else 1

    def pieces(self, multiple: int = 1) -> Iterator[Array]:
        """The tensor from its first row to its last; each piece but the last has a multiple of so many rows."""
        rows, step = self.rows, _rows_a_piece(self, multiple)
        if rows:
            with self.opened() as read:
                for start in range(0, rows, step):
                    yield read(start, min(start + step, rows))

    def tofile(self, file: Any) -> None:
        """Write the bytes at the file's position."""
        for piece in self.pieces():
            # ndarray.tofile would hide why a write failed; memoryview knows no bfloat16.
            file.write(piece.reshape(-1).view(np.uint8).data)

    def _whole(self) -> ir.TensorProtocol:
        shape, start = self.shape.numpy(), 0
        out = np.empty(shape, NUMPY_DTYPES[self.dtype])
        by_row = out.reshape(self.rows, *shape[1:])
        for piece in self.pieces():
            by_row[start : start + len(piece)] = piece
            start += len(piece)
        return ir.Tensor(out, dtype=self.dtype, name=self.name)


def _rows_a_piece(tensor: StreamedTensor, multiple: int) -> int:
    unit_rows = lcm(tensor.unit_rows, multiple)
    unit_bytes = max(1, tensor.nbytes * unit_rows // max(1, tensor.rows))
    piece_bytes = max(_PIECE_BYTES, tensor.nbytes // _MOST_PASSES if tensor.reads_all else 0)
    return max(1, piece_bytes // unit_bytes) * unit_rows


class _Sources:
    """The parameters behind a tensor, each read once."""

    def __init__(self, sources: Sequence[tuple[str, Param]], weights: WeightSource) -> None:
        self._names, self._weights = [name for name, _ in sources], weights
        self.arrays = [weights.read(name, param) for name, param in sources]

    def release(self) -> None:
        for name in self._names:
            self._weights.release(name)


def lazy_tensor(
    name: str,
    shape: Sequence[int],
    dtype: ir.DataType,
    sources: Sequence[tuple[str, Param]],
    transform: Transform | None,
    weights: WeightSource,
) -> StreamedTensor:
    """An initializer made of one or several parameters. Without ``transform`` it is the one parameter.

    Raises (when read):
        ArchcError: a value lies beyond float16.
    """
    form = Rows() if transform is None else transform
    row_shape, total = tuple(shape[1:]), shape[0] if shape else 1

    def finished(piece: Array, rows: int) -> Array:
        piece = piece.reshape(1) if piece.ndim == 0 else piece
        assert piece.shape == (rows, *row_shape), f"{name}: the transform gives {piece.shape}, not {(rows, *row_shape)}"
        piece = rounded(piece, dtype)
        if dtype == ir.DataType.FLOAT16 and not is_finite_float16(piece):
            raise ArchcError(f"{name} has values that float16 can't hold; export it as bfloat16 or float32")
        return piece

    @contextmanager
    def opened() -> Iterator[Reader]:
        read = _Sources(sources, weights)
        try:
            if isinstance(form, Piecewise):
                make = form.block

                def block(start: int, stop: int) -> Array:
                    piece = finished(make(read, start, stop, total), stop - start)
                    read.release()
                    return piece

                yield block
            else:
                whole = form(*read.arrays)
                # The sources are dropped as soon as the transform is through.
                read.arrays.clear()
                read.release()
                assert whole.shape == tuple(shape), f"{name}: the transform gives {whole.shape}, not {tuple(shape)}"
                yield lambda start, stop: finished(whole[start:stop] if shape else whole, stop - start)
        finally:
            read.release()

    unit_rows = form.unit_rows(total) if isinstance(form, Piecewise) else 1
    return StreamedTensor(
        name, shape, dtype, unit_rows=unit_rows, reads_all=isinstance(form, Transposed), opened=opened
    )


def computed_tensor(name: str, shape: Sequence[int], dtype: ir.DataType, rows: Reader) -> StreamedTensor:
    """A tensor whose rows are computed when it is written; ``rows`` gives them in any dtype."""

    @contextmanager
    def opened() -> Iterator[Reader]:
        yield lambda start, stop: rounded(rows(start, stop), dtype)

    return StreamedTensor(name, shape, dtype, unit_rows=1, opened=opened)


def joined(name: str, tensors: Sequence[ir.TensorProtocol], axis: int) -> StreamedTensor:
    """One tensor that holds several of one dtype along ``axis``, read when it is written, a few rows of each at a time."""
    first = tensors[0]
    assert all(tensor.dtype == first.dtype for tensor in tensors), f"{name} is joined of several dtypes"
    shapes = [list(tensor.shape.numpy()) for tensor in tensors]
    axis %= len(shapes[0])
    shape = list(shapes[0])
    shape[axis] = sum(part[axis] for part in shapes)
    assert all(part[:axis] + part[axis + 1 :] == shape[:axis] + shape[axis + 1 :] for part in shapes), (
        f"{name}: {shapes}"
    )
    streamed = [tensor for tensor in tensors if isinstance(tensor, StreamedTensor)]
    unit_rows = 1 if axis == 0 else lcm(*(tensor.unit_rows for tensor in streamed))
    reads_all = any(tensor.reads_all for tensor in streamed)

    @contextmanager
    def opened() -> Iterator[Reader]:
        with ExitStack() as stack:
            readers = [stack.enter_context(_opened(tensor, aligned=axis > 0)) for tensor in tensors]
            if axis > 0:
                yield lambda start, stop: np.concatenate([read(start, stop) for read in readers], axis)
            else:
                yield _behind_one_another(readers, [part[0] for part in shapes])

    return StreamedTensor(name, shape, first.dtype, unit_rows=unit_rows, reads_all=reads_all, opened=opened)


@contextmanager
def _opened(tensor: ir.TensorProtocol, *, aligned: bool) -> Iterator[Reader]:
    """A reader of any tensor; one that needs multiples of a unit is read whole where bounds are not ``aligned`` to it."""
    if isinstance(tensor, StreamedTensor) and (aligned or tensor.unit_rows == 1):
        with tensor.opened() as read:
            yield read
    else:
        whole = tensor.numpy()
        yield lambda start, stop: whole[start:stop]


def _behind_one_another(readers: Sequence[Reader], rows: Sequence[int]) -> Reader:
    """A reader over the rows of all, given how many each has."""

    def read(start: int, stop: int) -> Array:
        pieces: list[Array] = []
        before = 0
        for part, count in zip(readers, rows, strict=True):
            first, last = max(start - before, 0), min(stop - before, count)
            if first < last:
                pieces.append(part(first, last))
            before += count
        return np.concatenate(pieces)

    return read
