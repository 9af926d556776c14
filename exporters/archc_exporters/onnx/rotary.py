"""Rotary position embedding, and queries that grow with the position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import rotary as ops
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.step import positions
from archc_exporters.onnx.weights import Array

TURNS = "RotaryEmbedding over all channels of a head or the leading ones"
"""The form of a rotation, until it moves into the attention behind it."""


TURNED = "archc.turned"
"""Mark on rotated values: what was rotated and how, a ``_Turned``, for those who want the parts of a head apart."""


@dataclass(frozen=True)
class _Turned:
    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    offset: int
    interleaved: int


def turned_part(
    ctx: Lowering, x: ir.Value, heads: int, head_dim: int, *, offset: int
) -> tuple[ir.Value, ir.Value] | None:
    """(channels before ``offset``, rotated ones behind it), each (batch, heads, seq, …); None where x was not turned so.

    The rotation is done anew on the heads' layout, so that nothing is put together to be taken apart again.
    """
    mark = x.meta.get(TURNED)
    if not isinstance(mark, _Turned) or mark.offset != offset:
        return None
    by_head = ctx.op("Reshape", mark.x, ctx.ints(0, 0, heads, head_dim))
    by_head = ctx.op("Transpose", by_head, perm=[0, 2, 1, 3])
    sizes = ctx.ints(offset, head_dim - offset)
    before, part = ctx.ops("Split", by_head, sizes, dtypes=(None, None), axis=-1)
    rotated = ctx.op("RotaryEmbedding", part, mark.cos, mark.sin, positions(ctx), interleaved=mark.interleaved)
    return before, rotated


def rope_table(ctx: Lowering, node: Node, _: ir.Value) -> tuple[ir.Value, ir.Value]:
    """cos and sin as initializers over every position of the capacity, (rows, dim / 2); ``rotary`` picks the rows."""
    op = node.op
    assert isinstance(op, ops.RopeTable)
    ctx.note("cos and sin as initializers over the capacity: rows are read by position, nothing is computed a step")
    shape, frequencies = (ctx.table_rows, len(op.frequencies)), np.array(op.frequencies)

    def angles(start: int, stop: int) -> Array:
        return np.arange(start, stop, dtype=np.float64)[:, None] * frequencies

    cos = ctx.table(f"{ctx.path}.cos", shape, lambda start, stop: np.cos(angles(start, stop)) * op.factor)
    sin = ctx.table(f"{ctx.path}.sin", shape, lambda start, stop: np.sin(angles(start, stop)) * op.factor)
    return cos, sin


def rotary(ctx: Lowering, node: Node, x: ir.Value, cos: ir.Value, sin: ir.Value) -> ir.Value:
    """RotaryEmbedding; channels that do not lead in their head are cut out, turned and put back."""
    op = node.op
    assert isinstance(op, ops.Rotary)
    heads, rest = node.inputs[0].width // op.head_dim, op.head_dim - op.offset - op.dim
    interleaved = int(op.style == "interleaved")
    if op.offset == 0:
        ctx.note(TURNS)
        return ctx.op(
            "RotaryEmbedding",
            x,
            cos,
            sin,
            positions(ctx),
            num_heads=heads,
            interleaved=interleaved,
            rotary_embedding_dim=0 if rest == 0 else op.dim,
        )
    ctx.note("Split, RotaryEmbedding, Concat: the op turns leading channels only")
    sizes = (op.offset, op.dim, rest) if rest else (op.offset, op.dim)
    split = ctx.op("Reshape", x, ctx.ints(0, 0, heads, op.head_dim))
    before, part, *after = ctx.ops("Split", split, ctx.ints(*sizes), dtypes=(None,) * len(sizes), axis=-1)
    # (batch, seq, heads, dim) read as (batch, seq, heads x dim) has the layout that the op wants.
    flat = ctx.op("Reshape", part, ctx.ints(0, 0, heads * op.dim))
    turned = ctx.op("RotaryEmbedding", flat, cos, sin, positions(ctx), num_heads=heads, interleaved=interleaved)
    part = ctx.op("Reshape", turned, ctx.ints(0, 0, heads, op.dim))
    y = ctx.op("Reshape", ctx.op("Concat", before, part, *after, axis=-1), ctx.ints(0, 0, node.inputs[0].width))
    if not rest:
        y.meta[TURNED] = _Turned(x, cos, sin, op.offset, interleaved)
    return y


def query_temperature(ctx: Lowering, node: Node, x: ir.Value, at: ir.Value) -> ir.Value:
    """The factor is computed once a step in float32 and rounded to the model's dtype."""
    op = node.op
    assert isinstance(op, ops.QueryTemperature)

    def make() -> ir.Value:
        one, floor = (ctx.scalar(number, ir.DataType.INT64) for number in (1, op.floor))
        steps = ctx.cast(ctx.op("Div", ctx.op("Add", at, one), floor), ir.DataType.FLOAT)
        unit, factor = (ctx.scalar(number, ir.DataType.FLOAT) for number in (1.0, op.scale))
        warmth = ctx.op("Add", ctx.op("Mul", ctx.op("Log", ctx.op("Add", steps, unit)), factor), unit)
        return ctx.cast(ctx.op("Unsqueeze", warmth, ctx.ints(2)), ctx.dtype)

    ctx.note("Mul with a factor that all layers share")
    return ctx.op("Mul", x, ctx.shared(("query temperature", op.scale, op.floor), make))
