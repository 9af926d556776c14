"""Sinks: a learned logit a head joins the softmax, as a key that every token sees and whose value is zero.

Attention-24 has no sinks; two forms of it are exact. As a *column* of the mask the logit needs a mask a head, seq x T
numbers each, which is small for one new token and does not fit for thousands. As a *channel*, queries end in logit / scale
and keys in 0, but for a sink row that ends in 1: no mask a head, at the price of wider keys. A soft cap would bend the
channel's score, so it takes the column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops.attention import Attention
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.step import lowest
from archc_exporters.onnx.weights import NUMPY_DTYPES, Array

INT64 = ir.DataType.INT64
_MASKED_ROWS = 4
"""Sink rows behind masked keys, one of them seen: CUDA's memory-efficient kernel wants masks as wide as a multiple of 4."""


def attend_by_channel(
    ctx: Lowering,
    node: Node,
    op: Attention,
    qkv: tuple[ir.Value, ir.Value, ir.Value],
    *,
    mask: ir.Value | None,
    numbers: dict[str, Any],
    is_shared: bool = True,
) -> ir.Value:
    """Attention over keys and values (batch, K, T, width) and the sink, (batch, N, seq, value_dim).

    The mask (batch, 1, seq, T) serves all heads, and other layers too where it ``is_shared``. Without one attention is
    causal, and the sink stands before the first key, because causality is aligned to the end; else it stands behind the last.
    """
    q, keys, values = qkv
    width = op.key_dim + _channels(op)
    # Values become as wide as keys: CUDA's fused kernels for grouped heads want one width.
    value_width = max(width, op.value_dim)
    q = ctx.op("Concat", q, _query_channels(ctx, node, op), axis=-1)
    keys, values = _widened(ctx, keys, width - op.key_dim), _widened(ctx, values, value_width - op.value_dim)
    if mask is None:
        keys = ctx.op("Concat", _sink_rows(ctx, op, 1, width, key=True), keys, axis=2)
        values = ctx.op("Concat", _sink_rows(ctx, op, 1, value_width, key=False), values, axis=2)
        length = ctx.shared("kv and sink", lambda: ctx.op("Add", ctx.inputs["kv_length"], ctx.ints(1)))
        o = ctx.op("Attention", q, keys, values, None, None, None, length, is_causal=1, **numbers)
    else:
        keys = ctx.op("Concat", keys, _sink_rows(ctx, op, _MASKED_ROWS, width, key=True), axis=2)
        values = ctx.op("Concat", values, _sink_rows(ctx, op, _MASKED_ROWS, value_width, key=False), axis=2)
        o = ctx.op("Attention", q, keys, values, _mask_over_sink_rows(ctx, mask, is_shared=is_shared), **numbers)
    return o if value_width == op.value_dim else ctx.op("Slice", o, ctx.ints(0), ctx.ints(op.value_dim), ctx.ints(3))


def attend_by_column(
    ctx: Lowering,
    node: Node,
    op: Attention,
    qkv: tuple[ir.Value, ir.Value, ir.Value],
    *,
    mask: ir.Value,
    numbers: dict[str, Any],
) -> ir.Value:
    """The same with the logit in a mask a head; the mask (batch, 1, seq, T) covers the keys without the sink's."""
    q, keys, values = qkv
    keys = ctx.op("Concat", keys, _sink_rows(ctx, op, 1, op.key_dim, key=False), axis=2)
    values = ctx.op("Concat", values, _sink_rows(ctx, op, 1, op.value_dim, key=False), axis=2)
    heads = op.num_heads

    def as_column(sinks: Array) -> Array:
        return sinks.reshape(1, heads, 1, 1)

    sinks = ctx.weight(node, "sinks", tag="column", shape=(1, heads, 1, 1), transform=as_column)
    column = ctx.op("Expand", sinks, _shape(ctx, heads, new_tokens=True, width=1))
    by_head = ctx.op("Concat", ctx.op("Expand", mask, ctx.ints(1, heads, 1, 1)), column, axis=-1)
    return ctx.op("Attention", q, keys, values, by_head, **numbers)


def _query_channels(ctx: Lowering, node: Node, op: Attention) -> ir.Value:
    """What queries end in: logit / scale, 0, 0, …, (batch, N, seq, C)."""
    heads, channels = op.num_heads, _channels(op)

    def as_channels(sinks: Array) -> Array:
        wide = np.zeros((1, heads, 1, channels), np.float32)
        wide[0, :, 0, 0] = sinks.astype(np.float32) / np.float32(op.scale)
        return wide

    sinks = ctx.weight(node, "sinks", tag="channels", shape=(1, heads, 1, channels), transform=as_channels)
    return ctx.op("Expand", sinks, _shape(ctx, heads, new_tokens=True, width=channels))


def _widened(ctx: Lowering, rows: ir.Value, channels: int) -> ir.Value:
    """Keys or values (batch, K, T, width) with channels of zeros behind them. Concat, because CUDA's Pad has no bfloat16."""
    if channels == 0:
        return rows
    shape = ctx.op("Concat", ctx.op("Shape", rows, dtype=INT64, start=0, end=3), ctx.ints(channels), axis=0)
    zero = ctx.constant(np.zeros((1, 1, 1, 1), NUMPY_DTYPES[ctx.dtype]))
    return ctx.op("Concat", rows, ctx.op("Expand", zero, shape), axis=-1)


def _sink_rows(ctx: Lowering, op: Attention, rows: int, width: int, *, key: bool) -> ir.Value:
    """(batch, K, rows, width) of zeros; the first row of a ``key`` is 1 in the channel behind the head's own."""

    def make() -> ir.Value:
        block = np.zeros((1, op.num_kv_heads, rows, width), NUMPY_DTYPES[ctx.dtype])
        if key:
            block[:, :, 0, op.key_dim] = 1
        return ctx.op("Expand", ctx.constant(block), _shape(ctx, 1, new_tokens=False, width=1))

    return ctx.shared(("sink rows", op.num_kv_heads, rows, width, op.key_dim if key else None), make)


def _mask_over_sink_rows(ctx: Lowering, mask: ir.Value, *, is_shared: bool) -> ir.Value:
    """The mask with columns for the sink rows, of which the first is seen: (batch, 1, seq, T + rows)."""

    def make() -> ir.Value:
        columns = np.full((1, 1, 1, _MASKED_ROWS), lowest(ctx), NUMPY_DTYPES[ctx.dtype])
        columns[..., 0] = 0
        shape = _shape(ctx, 1, new_tokens=True, width=_MASKED_ROWS)
        return ctx.op("Concat", mask, ctx.op("Expand", ctx.constant(columns), shape), axis=-1)

    return ctx.shared(("mask with sink rows", mask.name), make) if is_shared else make()


def _channels(op: Attention) -> int:
    """Channels that make the head wider by one and its width a multiple of 8, which kernels want."""
    return 8 - op.key_dim % 8


def _shape(ctx: Lowering, heads: int, *, new_tokens: bool, width: int) -> ir.Value:
    """(batch, heads, seq or 1, width), computed on the host."""

    def make() -> ir.Value:
        batch, seq = (ctx.op("Shape", ctx.inputs["input_ids"], dtype=INT64, start=at, end=at + 1) for at in (0, 1))
        return ctx.op("Concat", batch, ctx.ints(heads), seq if new_tokens else ctx.ints(1), ctx.ints(width), axis=0)

    return ctx.shared(("shape", heads, new_tokens, width), make)
