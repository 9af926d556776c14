"""Disentangled attention in plain products and gathers: no fused operator knows scores in which positions take part.

Legend of shapes: N heads, H key width, S tokens, P relative positions.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import disentangled as ops
from archc_exporters.onnx.caches import from_heads, to_heads
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.masked_attention import padding_seen
from archc_exporters.onnx.step import additive, new_tokens, token_index
from archc_exporters.onnx.weights import Array

INT64, FLOAT = ir.DataType.INT64, ir.DataType.FLOAT


def relative_embeddings(ctx: Lowering, node: Node) -> ir.Value:
    """The table as an initializer (1, rows, width)."""
    rows, width = node.params["weight"].shape
    ctx.note("an initializer")
    return ctx.weight(node, "weight", tag="batched", shape=(1, rows, width), transform=_batched)


def disentangled_attention(
    ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value, *further: ir.Value
) -> ir.Value:
    """Three products of scores; those with all positions are gathered by each pair's distance."""
    op = node.op
    assert isinstance(op, ops.DisentangledAttention)
    padding, *tables = further if op.has_padding else (None, *further)
    ctx.note("MatMul of contents with contents and with every position, GatherElements by distance, Softmax in float32")
    query, key, value = (
        to_heads(ctx, x, op.num_heads, dim) for x, dim in ((q, op.key_dim), (k, op.key_dim), (v, op.value_dim))
    )
    scores = ctx.op("MatMul", query, ctx.op("Transpose", key, perm=[0, 1, 3, 2]))
    if op.has_position_keys:
        assert tables[0] is not None
        scores = ctx.op("Add", scores, _met(ctx, op, query, tables[0]))
    if op.has_position_queries:
        assert tables[-1] is not None
        met = _met(ctx, op, key, tables[-1], is_turned=True)
        scores = ctx.op("Add", scores, ctx.op("Transpose", met, perm=[0, 1, 3, 2]))
    scores = ctx.cast(ctx.op("Mul", scores, ctx.scalar(op.scale)), FLOAT)
    if padding is not None:
        mask = ctx.shared("padding, added", lambda: additive(ctx, padding_seen(ctx, padding)))
        scores = ctx.op("Add", scores, ctx.cast(mask, FLOAT))
    weights = ctx.cast(ctx.op("Softmax", scores, axis=-1), ctx.dtype)
    return from_heads(ctx, ctx.op("MatMul", weights, value), op.num_heads * op.value_dim)


def _met(
    ctx: Lowering, op: ops.DisentangledAttention, x: ir.Value, table: ir.Value, *, is_turned: bool = False
) -> ir.Value:
    """x (batch, N, S, H) with each pair's relative position, (batch, N, S, S); ``is_turned`` where x's tokens are the keys."""
    positions = to_heads(ctx, table, op.num_heads, op.key_dim)
    all_ = ctx.op("MatMul", x, ctx.op("Transpose", positions, perm=[0, 1, 3, 2]))
    index = ctx.shared(
        ("relative positions", op.max_distance, op.num_heads, is_turned),
        lambda: _index(ctx, op, x, is_turned=is_turned),
    )
    return ctx.op("GatherElements", all_, index, axis=3)


def _index(ctx: Lowering, op: ops.DisentangledAttention, x: ir.Value, *, is_turned: bool) -> ir.Value:
    """Row of the table for each pair of tokens, int64 (batch, N, S, S)."""
    at = token_index(ctx)
    rows, columns = ctx.op("Unsqueeze", at, ctx.ints(1, 3)), ctx.op("Unsqueeze", at, ctx.ints(1, 2))
    ahead, behind = (columns, rows) if is_turned else (rows, columns)
    distance = ctx.op("Sub", ahead, behind)
    low, high = (ctx.scalar(number, INT64) for number in (-op.max_distance, op.max_distance - 1))
    bounded = ctx.op("Max", ctx.op("Min", distance, high), low)
    row = ctx.op("Add", bounded, ctx.scalar(op.max_distance, INT64))
    batch = ctx.op("Shape", x, dtype=INT64, start=0, end=1)
    shape = ctx.op("Concat", batch, ctx.ints(op.num_heads), new_tokens(ctx), new_tokens(ctx), axis=0)
    return ctx.op("Expand", row, shape)


def _batched(table: Array) -> Array:
    """(rows, width) -> (1, rows, width)."""
    return np.expand_dims(table, 0)
