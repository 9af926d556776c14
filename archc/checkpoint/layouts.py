"""What a layout does to numbers: parts that stand side by side there and apart here. Pure functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from archc.checkpoint.rules import ALTERNATE, Layout

Array = np.ndarray[Any, Any]


def shape_there(layout: Layout, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of the tensor that holds weights of these shapes.

    Raises:
        ValueError: they don't fit the layout.
    """
    first = shapes[0]
    rest = [shape[: layout.axis] + shape[layout.axis + 1 :] for shape in shapes]
    if any(other != rest[0] for other in rest):
        raise ValueError(f"parts of {', '.join(str(list(shape)) for shape in shapes)} don't stand side by side")
    groups = _groups(layout, shapes)
    uneven = [list(shape) for shape in shapes if shape[layout.axis] % groups]
    if uneven:
        raise ValueError(f"the rows of {', '.join(map(str, uneven))} are no multiple of {groups} groups")
    rows = _padded(layout, sum(shape[layout.axis] for shape in shapes))
    shape = (*first[: layout.axis], rows, *first[layout.axis + 1 :])
    if layout.transposed and len(shape) > 1:
        shape = (*shape[:-2], shape[-1], shape[-2])
    if layout.view is not None:
        known = int(np.prod([dim for dim in layout.view if dim != -1]))
        total = int(np.prod(shape))
        shape = tuple(total // known if dim == -1 else dim for dim in layout.view)
    return shape


def to_ours(layout: Layout, theirs: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The weights that a tensor holds, views of it where they can be."""
    rows = sum(shape[layout.axis] for shape in shapes)
    if layout.row_multiple > 1:
        theirs = theirs.take(range(rows), layout.axis)
    whole = (*shapes[0][: layout.axis], rows, *shapes[0][layout.axis + 1 :])
    if layout.view is not None:
        theirs = theirs.reshape(_stored(layout, whole))
    if layout.transposed and theirs.ndim > 1:
        theirs = theirs.swapaxes(-1, -2)
    if len(shapes) == 1 and layout.groups is None:
        return [theirs.reshape(shapes[0])]
    groups = _groups(layout, shapes)
    axis = layout.axis
    split = theirs.reshape(*whole[:axis], groups, rows // groups, *whole[axis + 1 :])
    ends = np.cumsum([shape[axis] // groups for shape in shapes])[:-1]
    parts = np.split(split, ends, axis=axis + 1)
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def to_theirs(layout: Layout, ours: Sequence[Array]) -> Array:
    """The tensor that holds these weights."""
    shapes = [part.shape for part in ours]
    groups, axis = _groups(layout, shapes), layout.axis
    parts = [
        part.reshape(*part.shape[:axis], groups, part.shape[axis] // groups, *part.shape[axis + 1 :]) for part in ours
    ]
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis + 1)
    rows = sum(shape[axis] for shape in shapes)
    whole = joined.reshape(*shapes[0][:axis], rows, *shapes[0][axis + 1 :])
    behind = _padded(layout, rows) - rows
    if behind:
        whole = np.pad(whole, [(0, behind if dim == axis else 0) for dim in range(whole.ndim)])
    if layout.transposed and whole.ndim > 1:
        whole = whole.swapaxes(-1, -2)
    if layout.view is not None:
        whole = whole.reshape(layout.view)
    return np.ascontiguousarray(whole)


def _padded(layout: Layout, rows: int) -> int:
    return -(-rows // layout.row_multiple) * layout.row_multiple


def _groups(layout: Layout, shapes: Sequence[tuple[int, ...]]) -> int:
    if layout.groups is None:
        return 1
    return min(shape[layout.axis] for shape in shapes) if layout.groups == ALTERNATE else layout.groups


def _stored(layout: Layout, whole: tuple[int, ...]) -> tuple[int, ...]:
    """Shape before it was viewed otherwise."""
    return (*whole[:-2], whole[-1], whole[-2]) if layout.transposed and len(whole) > 1 else whole
