"""Causal attention over a full cache whose mask is not causality alone: a prefix that sees itself, or a bias on the scores."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops.attention import Attention
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.single import attend_one
from archc_exporters.onnx.slopes import QKV, attend_by_mask, sloping
from archc_exporters.onnx.step import additive, is_many, positions, rows_in_use


def attend_given(
    ctx: Lowering, node: Node, op: Attention, qkv: QKV, further: ir.Value, numbers: dict[str, Any]
) -> ir.Value:
    """Over a copy of the rows in use, whose number is a multiple of 8: CUDA's memory-efficient kernel wants one of 4.

    ``further`` is the bias (batch, N, seq, T), which knows what is seen, or the length of the prefix (batch,).
    """
    q, keys, values = qkv
    end, _ = rows_in_use(ctx)
    # A prefix belongs into one call, but a token that comes alone may stand in it all the same.
    mask = further if op.has_bias else prefix_mask(ctx, op, further)

    def used() -> QKV:
        taken = (ctx.op("Slice", cache, ctx.ints(0), end, ctx.ints(2)) for cache in (keys, values))
        return (q, *taken)  # pyright: ignore[reportReturnType] - two of them

    def many() -> tuple[ir.Value]:
        return (attend_by_mask(ctx, node, op, used(), mask, numbers),)

    def one() -> tuple[ir.Value]:
        return (attend_one(ctx, node, op, used(), mask),)

    what = "the bias, which knows what is seen, as a" if op.has_bias else "the prefix and causality in one"
    ctx.note(
        f"TensorScatter and a copy of the rows in use; If(seq > 1): Attention, else plain products; {what} float mask"
    )
    return ctx.choose(is_many(ctx), many, one, (ctx.dtype,))[0]


def prefix_mask(ctx: Lowering, op: Attention, length: ir.Value) -> ir.Value:
    """What tokens see of the rows in use: those up to themselves, and the first ``length`` (batch,) of the sequence."""
    return ctx.shared(("prefix", op.slopes), lambda: _prefix_mask(ctx, op, length))


def _prefix_mask(ctx: Lowering, op: Attention, length: ir.Value) -> ir.Value:
    seen, rows, query = prefix_seen(ctx, length)
    if op.slopes is None:
        return additive(ctx, seen)
    return sloping(ctx, op, seen, rows, query, both_sides=True)


def prefix_seen(ctx: Lowering, length: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(which of the rows in use tokens see, (batch, seq, T) bool; the rows (1, 1, T); positions of tokens (batch, seq, 1))."""

    def make() -> tuple[ir.Value, ir.Value, ir.Value]:
        _, rows = rows_in_use(ctx)
        query = ctx.op("Unsqueeze", positions(ctx), ctx.ints(2))
        before = ctx.op("LessOrEqual", rows, query, dtype=ir.DataType.BOOL)
        inside = ctx.op("Less", rows, ctx.op("Unsqueeze", length, ctx.ints(1, 2)), dtype=ir.DataType.BOOL)
        return ctx.op("Or", before, inside), rows, query

    return ctx.shared("prefix seen", make)
