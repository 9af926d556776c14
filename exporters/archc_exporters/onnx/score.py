"""Attention by additive scores and by kernels of products, in standard operators: no fused one has another score.

Legend of shapes: N heads, H width of queries and keys, S new tokens, T keys. Scores and weights are float32.
"""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import score as ops
from archc_exporters.onnx.caches import append, from_heads, joined, to_heads, turned
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.elementwise import activate
from archc_exporters.onnx.masked_attention import padding_seen
from archc_exporters.onnx.prefix import prefix_seen
from archc_exporters.onnx.step import positions, ring_seen, rows_in_use
from archc_exporters.onnx.weights import Array

BOOL, FLOAT, INT64 = ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT64
SMALLEST = 1e-20
"""What a row of scores is divided by at least, so that one of zeros gives zeros."""
UNSEEN = -1e30
"""A score that leaves nothing of a key."""

Anyhow = ops.ScoreAttention | ops.BidirectionalScoreAttention | ops.CrossScoreAttention


def score_attention(
    ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value, prefix: ir.Value | None = None
) -> ir.Value:
    """Over a copy of the rows in use, or over [ring | new tokens]; ``prefix`` is its length (batch,)."""
    op = node.op
    assert isinstance(op, ops.ScoreAttention)
    _note(ctx, op)
    q, k, v = _by_head(ctx, op, q, k, v)
    if op.ring_rows() is not None:
        keys, values = joined(ctx, node, "key", k), joined(ctx, node, "value", v)
        seen, _, _ = ring_seen(ctx, window=op.window, chunk=None, sink_tokens=op.sink_tokens)
        o = _attend(ctx, node, op, q, keys, values, seen)
        for role, both in (("key", keys), ("value", values)):
            ctx.present(node, role, turned(ctx, op, op.num_kv_heads, both))
        return o
    end, rows = rows_in_use(ctx)
    keys, values = (
        ctx.op("Slice", append(ctx, node, role, new), ctx.ints(0), end, ctx.ints(2))
        for role, new in (("key", k), ("value", v))
    )
    if prefix is not None:
        seen, _, _ = prefix_seen(ctx, prefix)
    else:
        seen = ctx.shared(
            "causal, seen",
            lambda: ctx.op("LessOrEqual", rows, ctx.op("Unsqueeze", positions(ctx), ctx.ints(2)), dtype=BOOL),
        )
    return _attend(ctx, node, op, q, keys, values, seen)


def bidirectional_score_attention(
    ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value, padding: ir.Value | None = None
) -> ir.Value:
    """Among all tokens; ``padding`` (batch, seq) is 1 for tokens."""
    op = node.op
    assert isinstance(op, ops.BidirectionalScoreAttention)
    _note(ctx, op)
    seen = None if padding is None else padding_seen(ctx, padding)
    return _attend(ctx, node, op, *_by_head(ctx, op, q, k, v), seen)


def cross_score_attention(
    ctx: Lowering,
    node: Node,
    q: ir.Value | None,
    k: ir.Value | None,
    v: ir.Value | None,
    padding: ir.Value | None = None,
) -> ir.Value | None:
    """With the encoder, keys and values by head go out; in the decoder they come in."""
    op = node.op
    assert isinstance(op, ops.CrossScoreAttention)
    if ctx.part == "encoder":
        assert k is not None
        assert v is not None
        ctx.note("keys and values by head as outputs, written once a text")
        ctx.kept(node, "key", to_heads(ctx, k, op.num_heads, op.key_dim))
        ctx.kept(node, "value", to_heads(ctx, v, op.num_heads, op.value_dim))
        return None
    assert q is not None
    _note(ctx, op)
    query = to_heads(ctx, q, op.num_heads, op.key_dim)
    seen = None if padding is None else padding_seen(ctx, padding)
    return _attend(ctx, node, op, query, ctx.past(node, "key"), ctx.past(node, "value"), seen)


def _note(ctx: Lowering, op: Anyhow) -> None:
    met = "Add of every query and key" if op.meeting == "sum" else "MatMul"
    weighed = "Softmax" if op.weighing == "softmax" else "Div by the sum of a row"
    function = "" if op.function is None else f", {op.function}"
    ctx.note(f"{met}{function}, {weighed} in float32: no fused operator has another score than a softmax of products")


def _by_head(ctx: Lowering, op: Anyhow, q: ir.Value, k: ir.Value, v: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    heads = op.num_heads
    return (
        to_heads(ctx, q, heads, op.key_dim),
        to_heads(ctx, k, heads, op.key_dim),
        to_heads(ctx, v, heads, op.value_dim),
    )


def _attend(
    ctx: Lowering,
    node: Node,
    op: Anyhow,
    q: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    seen: ir.Value | None,
) -> ir.Value:
    """(batch, N, S, H) over (batch, N, T, …) and what is seen of them, (batch or 1, S, T): (batch, S, N x value_dim)."""
    weight = None
    if op.meeting == "sum":
        weight = ctx.weight(node, "weight", tag="columns", shape=(op.num_heads, 1, op.key_dim, 1), transform=_columns)
    seen = None if seen is None else ctx.op("Unsqueeze", seen, ctx.ints(1))
    weights = ctx.cast(weigh(ctx, op.form, meet(ctx, op.form, q, keys, weight), seen), ctx.dtype)
    return from_heads(ctx, ctx.op("MatMul", weights, values), op.num_heads * op.value_dim)


def meet(ctx: Lowering, form: ops.ScoreForm, q: ir.Value, keys: ir.Value, weight: ir.Value | None) -> ir.Value:
    """Scores of queries (…, S, H) and keys (…, T, H), (…, S, T) in float32; ``weight`` (…, 1, H, 1) sums what meets in a sum."""
    if weight is None:
        last = 3
        scores = ctx.op("MatMul", q, ctx.op("Transpose", keys, perm=[0, 1, last, 2]))
        scores = _scaled(ctx, ctx.cast(scores, FLOAT), form)
        return scores if form.function is None else activate(ctx, scores, form.function)
    met = _scaled(
        ctx, ctx.op("Add", ctx.op("Unsqueeze", q, ctx.ints(-2)), ctx.op("Unsqueeze", keys, ctx.ints(-3))), form
    )
    if form.function is not None:
        met = activate(ctx, met, form.function)
    return ctx.cast(ctx.op("Squeeze", ctx.op("MatMul", met, weight), ctx.ints(-1)), FLOAT)


def weigh(ctx: Lowering, form: ops.ScoreForm, scores: ir.Value, seen: ir.Value | None) -> ir.Value:
    """Weights of what is seen, like the scores, float32."""
    if seen is not None:
        unseen = ctx.scalar(UNSEEN if form.weighing == "softmax" else 0.0, FLOAT)
        scores = ctx.op("Where", seen, scores, unseen, dtype=FLOAT)
    if form.weighing == "softmax":
        return ctx.op("Softmax", scores, axis=-1)
    total = ctx.op("ReduceSum", ctx.op("Abs", scores), ctx.ints(-1), keepdims=1)
    return ctx.op("Div", scores, ctx.op("Max", total, ctx.scalar(SMALLEST, FLOAT)))


def _scaled(ctx: Lowering, x: ir.Value, form: ops.ScoreForm) -> ir.Value:
    return x if form.scale == 1.0 else ctx.op("Mul", x, ctx.scalar(form.scale, x.dtype))


def _columns(weight: Array) -> Array:
    """(N, H) -> (N, 1, H, 1)."""
    return weight[:, None, :, None]
