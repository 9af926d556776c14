"""ALiBi: scores that fall with the distance, a slope a head, as numbers of a float mask (batch, heads, seq, T).

The mask also says what is seen. All layers with the same slopes share it. GroupQueryAttention's bias would run unfused on
CUDA, Attention-24 takes a float mask in its memory-efficient kernel where T is a multiple of 4: caches hold a multiple of
8 rows, and as many are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops.attention import Attention
from archc.ops.masked_attention import BidirectionalAttention
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.single import attend_one
from archc_exporters.onnx.sinks import attend_by_column
from archc_exporters.onnx.step import capacity_rows, is_many, lowest, past_column, positions, used_rows

QKV = tuple[ir.Value, ir.Value, ir.Value]


def attend_sloping(ctx: Lowering, node: Node, op: Attention, qkv: QKV, numbers: dict[str, Any]) -> ir.Value:
    """Over a copy of the rows in use: a mask over the capacity would not fit, and kernels read all that they are given."""
    q, keys, values = qkv
    rows = capacity_rows(ctx, keys)
    # A sink is one row more, so that nothing is won by rounding.
    end = ctx.inputs["max_length"] if op.sinks else used_rows(ctx, rows)

    def used(cache: ir.Value) -> ir.Value:
        return ctx.op("Slice", cache, ctx.ints(0), end, ctx.ints(2))

    def many() -> tuple[ir.Value]:
        mask = ctx.shared(("slopes", op.slopes, op.sinks), lambda: sloping_mask(ctx, op, used(rows), positions(ctx)))
        return (attend_by_mask(ctx, node, op, (q, used(keys), used(values)), mask, numbers),)

    def one() -> tuple[ir.Value]:
        key = ("slopes of one", op.slopes, op.sinks)
        mask = ctx.shared(key, lambda: sloping_mask(ctx, op, used(rows), past_column(ctx)))
        return (attend_one(ctx, node, op, (q, used(keys), used(values)), mask),)

    ctx.note(
        "TensorScatter and a copy of the rows in use; If(seq > 1): Attention, else plain products; slopes and causality in "
        "one float mask, rows a multiple of 8, because CUDA's memory-efficient kernel wants a multiple of 4"
    )
    return ctx.choose(is_many(ctx), many, one, (ctx.dtype,))[0]


def attend_by_mask(
    ctx: Lowering,
    node: Node,
    op: Attention,
    qkv: QKV,
    mask: ir.Value,
    numbers: dict[str, Any],
) -> ir.Value:
    """Attention under a mask (batch, N, seq, T); a sink is one more column of it."""
    if op.sinks:
        return attend_by_column(ctx, node, op, qkv, mask=mask, numbers=numbers)
    return ctx.op("Attention", *qkv, mask, **numbers)


def sloping_mask(ctx: Lowering, op: Attention, rows: ir.Value, at: ir.Value) -> ir.Value:
    """The causal mask of tokens at positions (batch, seq) over rows (1, 1, T), with slopes: (batch, N, seq, T)."""
    query = ctx.op("Unsqueeze", at, ctx.ints(2))
    return sloping(ctx, op, ctx.op("LessOrEqual", rows, query, dtype=ir.DataType.BOOL), rows, query)


def sloping(
    ctx: Lowering,
    op: Attention | BidirectionalAttention,
    seen: ir.Value,
    key: ir.Value,
    query: ir.Value,
    *,
    both_sides: bool = False,
) -> ir.Value:
    """Minus slope times distance where ``seen`` (batch, seq, T), the lowest useful number elsewhere.

    Positions are int64, (batch or 1, 1, T) and (batch, seq, 1); products are rounded once, to the model's dtype.
    """
    assert op.slopes is not None
    slopes = ctx.constant(np.array(op.slopes, np.float32).reshape(1, -1, 1, 1))
    # Of what is seen on both sides a key behind falls like one before.
    behind = ctx.op("Sub", key, query)
    behind = ctx.op("Neg", ctx.op("Abs", behind)) if both_sides else behind
    distance = ctx.op("Unsqueeze", ctx.cast(behind, ir.DataType.FLOAT), ctx.ints(1))
    falls = ctx.cast(ctx.op("Mul", distance, slopes), ctx.dtype)
    return ctx.op("Where", ctx.op("Unsqueeze", seen, ctx.ints(1)), falls, ctx.scalar(lowest(ctx)), dtype=ctx.dtype)
