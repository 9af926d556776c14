"""Attention that sees everything, attention to an encoder, and biases by distance that know the mask.

Legend of shapes: N query heads, K key-value heads, T keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import masked_attention as ops
from archc.ops.attention import Attention
from archc_exporters.onnx.caches import from_heads, to_heads
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.prefix import prefix_seen
from archc_exporters.onnx.single import attend_one
from archc_exporters.onnx.slopes import sloping
from archc_exporters.onnx.step import additive, is_many, lowest, new_tokens, rows_in_use, token_index
from archc_exporters.onnx.weights import Array

BOOL, INT64 = ir.DataType.BOOL, ir.DataType.INT64


def bidirectional_attention(
    ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value, *further: ir.Value
) -> ir.Value:
    """Attention-24 on (batch, seq, heads x width) as they come; ``further`` is the padding (batch, seq), or a bias."""
    op = node.op
    assert isinstance(op, ops.BidirectionalAttention)
    numbers: dict[str, Any] = {"scale": op.scale, "q_num_heads": op.num_heads, "kv_num_heads": op.num_kv_heads}
    if op.soft_cap is not None:
        numbers["softcap"] = op.soft_cap
    mask = further[0] if op.has_bias else _two_sided_mask(ctx, op, further[0] if op.has_padding else None)
    what = [
        text
        for text, there in (
            ("padding", op.has_padding),
            ("window", op.window is not None),
            ("slopes", op.slopes is not None),
            ("what is seen and the bias", op.has_bias),
        )
        if there
    ]
    ctx.note(
        "Attention without a mask, which CUDA's flash kernel takes"
        if mask is None
        else f"Attention under a float mask of {' and '.join(what)}, made once for all layers; CUDA's memory-efficient "
        "kernel takes lengths that are a multiple of 4"
    )
    return ctx.op("Attention", q, k, v, mask, **numbers)


def _two_sided_mask(ctx: Lowering, op: ops.BidirectionalAttention, padding: ir.Value | None) -> ir.Value | None:
    """What tokens see of each other, (batch or 1, 1 or N, seq, seq) as 0 or the lowest number, or what slopes make of it."""
    if padding is None and op.window is None and op.slopes is None:
        return None
    key = ("two-sided mask", op.window, op.slopes, op.has_padding)
    return ctx.shared(key, lambda: _make_two_sided(ctx, op, padding))


def _make_two_sided(ctx: Lowering, op: ops.BidirectionalAttention, padding: ir.Value | None) -> ir.Value:
    seen = None if padding is None else padding_seen(ctx, padding)
    if op.window is None and op.slopes is None:
        assert seen is not None
        return additive(ctx, seen)
    at = token_index(ctx)
    key, query = ctx.op("Unsqueeze", at, ctx.ints(1)), ctx.op("Unsqueeze", at, ctx.ints(2))
    distance = ctx.op("Abs", ctx.op("Sub", key, query))
    if op.window is not None:
        near = ctx.op("LessOrEqual", distance, ctx.scalar(op.window // 2, INT64), dtype=BOOL)
        if seen is None:
            seen = near
        else:
            # Padding with nothing but padding in its window sees itself, so that no row is empty.
            itself = ctx.op("Equal", distance, ctx.scalar(0, INT64), dtype=BOOL)
            seen = ctx.op("Or", ctx.op("And", seen, near), itself)
    if op.slopes is None:
        assert seen is not None
        return additive(ctx, seen)
    if seen is None:
        seen = ctx.op("GreaterOrEqual", distance, ctx.scalar(0, INT64), dtype=BOOL)
    return sloping(ctx, op, seen, key, query, both_sides=True)


def padding_seen(ctx: Lowering, padding: ir.Value) -> ir.Value:
    """(batch, T) of ones and zeros -> which keys every token sees, (batch, seq, T) bool: a mask has a row a query."""

    def make() -> ir.Value:
        seen = ctx.op("Unsqueeze", ctx.cast(padding, BOOL), ctx.ints(1))
        shape = ctx.op("Concat", ctx.ints(1), new_tokens(ctx), ctx.ints(1), axis=0)
        return ctx.op("Expand", seen, shape)

    return ctx.shared(("padding", padding.name), make)


def cross_attention(
    ctx: Lowering,
    node: Node,
    q: ir.Value | None,
    k: ir.Value | None,
    v: ir.Value | None,
    padding: ir.Value | None = None,
) -> ir.Value | None:
    """With the encoder, keys and values for each head go out; in the decoder, they come in, and Attention-24 reads them."""
    op = node.op
    assert isinstance(op, ops.CrossAttention)
    if ctx.part == "encoder":
        assert k is not None
        assert v is not None
        ctx.note("keys and values by head as outputs, written once a text")
        ctx.kept(node, "key", to_heads(ctx, k, op.num_kv_heads, op.key_dim))
        ctx.kept(node, "value", to_heads(ctx, v, op.num_kv_heads, op.value_dim))
        return None
    assert q is not None
    query = to_heads(ctx, q, op.num_heads, op.key_dim)
    keys, values = ctx.past(node, "key"), ctx.past(node, "value")
    numbers: dict[str, Any] = {"scale": op.scale}
    if op.soft_cap is not None:
        numbers["softcap"] = op.soft_cap
    alike = Attention(
        num_heads=op.num_heads,
        num_kv_heads=op.num_kv_heads,
        key_dim=op.key_dim,
        value_dim=op.value_dim,
        scale=op.scale,
        soft_cap=op.soft_cap,
    )
    if padding is None:
        ctx.note("Attention over what the encoder's file gave, without a mask")
        return from_heads(ctx, ctx.op("Attention", query, keys, values, **numbers), op.num_heads * op.value_dim)
    mask = ctx.shared("source mask", lambda: additive(ctx, padding_seen(ctx, padding)))
    mask_of_one = ctx.shared(
        "source mask of one", lambda: additive(ctx, ctx.op("Unsqueeze", ctx.cast(padding, BOOL), ctx.ints(1)))
    )
    ctx.note(
        "over what the encoder's file gave, padding as a float mask; If(seq > 1): Attention, else plain products over the "
        "rows where they lie"
    )
    o = ctx.choose(
        is_many(ctx),
        lambda: (ctx.op("Attention", query, keys, values, mask, **numbers),),
        lambda: (attend_one(ctx, node, alike, (query, keys, values), mask_of_one),),
        (ctx.dtype,),
    )[0]
    return from_heads(ctx, o, op.num_heads * op.value_dim)


def relative_bias(ctx: Lowering, node: Node, at: ir.Value, *further: ir.Value) -> ir.Value:
    """A row of numbers a distance is looked up, (batch, N, seq, T), and is the mask too: the lowest number where unseen.

    The logarithms of the buckets are taken when the file is written: the table has a row for every distance up to the last
    that has a bucket of its own.
    """
    op = node.op
    assert isinstance(op, ops.RelativeBias)
    last, both = op.max_distance, op.mask == "bidirectional"
    first = -last if both else 0
    steps = np.arange(first, last + 1)
    # Of causal attention the distance counts backwards.
    buckets = buckets_of(steps if both else -steps, op)

    def by_distance(table: Array) -> Array:
        return np.ascontiguousarray(table[buckets])

    shape = (len(steps), op.num_heads)
    table = ctx.weight(node, "weight", tag="by_distance", shape=shape, transform=by_distance)
    query = ctx.op("Unsqueeze", at, ctx.ints(2))
    if both:
        key = ctx.op("Unsqueeze", at, ctx.ints(1))
        seen = ctx.cast(further[0], BOOL) if further else None
        seen = None if seen is None else ctx.op("Unsqueeze", seen, ctx.ints(1, 2))
        distance = ctx.op("Sub", key, query)
    else:
        _, key = rows_in_use(ctx)
        if further:
            seen, _, _ = prefix_seen(ctx, further[0])
        else:
            seen = ctx.op("LessOrEqual", key, query, dtype=BOOL)
        seen = ctx.op("Unsqueeze", seen, ctx.ints(1))
        distance = ctx.op("Sub", query, key)
    low, high = (ctx.scalar(number, INT64) for number in (first, last))
    row = ctx.op("Min", ctx.op("Max", distance, low), high)
    if first:
        row = ctx.op("Sub", row, low)
    ctx.note("Gather from a table with a row a distance, buckets resolved when the file is written; the mask is in it")
    bias = ctx.op("Transpose", ctx.op("Gather", table, row, axis=0), perm=[0, 3, 1, 2])
    if seen is None:
        return bias
    return ctx.op("Where", seen, bias, ctx.scalar(lowest(ctx)), dtype=ctx.dtype)


def buckets_of(distances: Array, op: ops.RelativeBias) -> Array:
    """``ops.bucket_of`` of many distances, logarithms in float32, as the models were trained."""
    count, start = op.num_buckets, np.zeros_like(distances)
    if op.mask == "bidirectional":
        count //= 2
        start = (distances > 0) * count
        steps = np.abs(distances)
    else:
        steps = np.maximum(-distances, 0)
    exact = count // 2
    ratio = np.log(np.maximum(steps, 1).astype(np.float32) / np.float32(exact))
    grown = ratio / np.float32(np.log(op.max_distance / exact)) * np.float32(count - exact)
    far = np.minimum(exact + grown.astype(np.int64), count - 1)
    return start + np.where(steps < exact, steps, far)
