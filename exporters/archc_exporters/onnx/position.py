"""What positions add to the embedding."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.errors import GraphError
from archc.ir.values import Node
from archc.ops import position as ops
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.weights import Array


def learned_positions(ctx: Lowering, node: Node, at: ir.Value) -> ir.Value:
    """Gather. Rows before the offset are no position's and stay out of the file; padding beyond the last row reads that.

    Raises:
        GraphError: the file should take more tokens than there are rows.
    """
    op = node.op
    assert isinstance(op, ops.LearnedPositions)
    rows, offset = op.num_positions, op.offset
    is_counted = isinstance(node.inputs[0].shape[1], int)
    if not is_counted and ctx.graph.capacity(rows) < ctx.table_rows:
        raise GraphError(
            f"{ctx.path}: positions are learned up to max_position_embeddings, {rows}; max_model_len should be at most that"
        )

    def cut(table: Array) -> Array:
        return table[offset:]

    table = ctx.weight(node, "weight", tag="used" if offset else "", shape=(rows, op.width), transform=cut)
    if is_counted:
        ctx.note("Gather")
        return ctx.op("Gather", table, at, dtype=ctx.dtype, axis=0)
    ctx.note("Gather; positions of padding are held within the table, which a token's never leave")
    return ctx.op("Gather", table, ctx.op("Min", at, ctx.scalar(rows - 1, ir.DataType.INT64)), dtype=ctx.dtype, axis=0)


def sinusoids(ctx: Lowering, node: Node, at: ir.Value, x: ir.Value) -> ir.Value:
    """An initializer over every position of the capacity, of which Gather reads rows; nothing is computed a step."""
    op = node.op
    assert isinstance(op, ops.Sinusoids)
    width = node.inputs[1].width
    ctx.note("sines and cosines as an initializer over the capacity: Gather reads rows by position")
    frequencies = np.array(ops.sinusoid_frequencies(op.base, width))

    def rows(start: int, stop: int) -> Array:
        angles = np.arange(start, stop, dtype=np.float64)[:, None] * frequencies
        return np.stack((np.sin(angles), np.cos(angles)), -1).reshape(stop - start, width)

    table = ctx.table(f"{ctx.path}.table", (ctx.table_rows, width), rows, x.dtype)
    return ctx.op("Gather", table, at, axis=0)


def token_index(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """0, 1, … by the shape of what is counted, (1, tokens); positions of the call where it has no ids."""
    tokens = node.outputs[0].shape[1]
    ctx.note("a Range, or a constant where the number of tokens is one")
    if isinstance(tokens, int):
        index = ctx.constant(np.arange(tokens)[None])
    else:
        count = ctx.op("Shape", x, dtype=ir.DataType.INT64, start=1, end=2)
        zero, one = (ctx.scalar(number, ir.DataType.INT64) for number in (0, 1))
        index = ctx.op("Unsqueeze", ctx.op("Range", zero, ctx.op("Squeeze", count, ctx.ints(0)), one), ctx.ints(0))
    shape = ctx.op("Shape", x, dtype=ir.DataType.INT64, start=0, end=2)
    ctx.places = ctx.op("Expand", index, shape)
    return index
