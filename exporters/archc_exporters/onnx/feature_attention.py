"""Attention by feature maps. Features, sums and state are float32."""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import feature_attention as ops
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.linear_rule import linear_rule
from archc_exporters.onnx.step import valid_tokens

FLOAT = ir.DataType.FLOAT


def feature_attention(ctx: Lowering, node: Node, f: ir.Value, h: ir.Value, v: ir.Value) -> ir.Value:
    """LinearAttention with rule ``linear`` over values with a column of ones, whose sum divides; padding has features of 0."""
    op = node.op
    assert isinstance(op, ops.FeatureAttention)
    ctx.note("LinearAttention in float32, rule linear: a column of ones beside the values sums the weights, Div by it")
    heads, width = op.num_heads, op.value_dim
    values = _with_ones(ctx, v, heads, width)
    sums = linear_rule(
        ctx,
        node,
        ctx.cast(f, FLOAT),
        ctx.op("Mul", ctx.cast(h, FLOAT), valid_tokens(ctx)),
        ctx.op("Reshape", values, ctx.ints(0, 0, heads * (width + 1))),
        rule="linear",
        scale=1.0,
        heads=heads,
        key_heads=heads,
        key_dim=op.key_dim,
        value_dim=width + 1,
    )
    sums = ctx.op("Reshape", sums, ctx.ints(0, 0, heads, width + 1))
    return _quotient(ctx, node, sums, heads, width, op.eps)


def bidirectional_feature_attention(
    ctx: Lowering, node: Node, f: ir.Value, h: ir.Value, v: ir.Value, padding: ir.Value | None = None
) -> ir.Value:
    """Two products a head; padding has features of 0."""
    op = node.op
    assert isinstance(op, ops.BidirectionalFeatureAttention)
    ctx.note("MatMul, MatMul, Div in float32: the sums over a whole text are no recurrence")
    heads, width = op.num_heads, op.value_dim
    f, h = ctx.cast(f, FLOAT), ctx.cast(h, FLOAT)
    if padding is not None:
        h = ctx.op("Mul", h, ctx.op("Unsqueeze", ctx.cast(padding, FLOAT), ctx.ints(2)))
    f, h = (ctx.op("Reshape", x, ctx.ints(0, 0, heads, op.key_dim)) for x in (f, h))
    tokens, channels = [0, 2, 1, 3], [0, 2, 3, 1]
    values = ctx.op("Transpose", _with_ones(ctx, v, heads, width), perm=tokens)
    state = ctx.op("MatMul", ctx.op("Transpose", h, perm=channels), values)
    sums = ctx.op("MatMul", ctx.op("Transpose", f, perm=tokens), state)
    return _quotient(ctx, node, ctx.op("Transpose", sums, perm=tokens), heads, width, op.eps)


def _with_ones(ctx: Lowering, v: ir.Value, heads: int, width: int) -> ir.Value:
    """(batch, seq, heads x V) -> (batch, seq, heads, V + 1), float32."""
    values = ctx.op("Reshape", ctx.cast(v, FLOAT), ctx.ints(0, 0, heads, width))
    return ctx.op("Pad", values, ctx.ints(0, 1), ctx.scalar(1.0, FLOAT), ctx.ints(3))


def _quotient(ctx: Lowering, node: Node, sums: ir.Value, heads: int, width: int, eps: float) -> ir.Value:
    """(batch, seq, heads, V + 1) -> the sums of values by those of weights, (batch, seq, heads x V) in the model's dtype."""
    weighted, weights = ctx.ops("Split", sums, ctx.ints(width, 1), dtypes=(FLOAT, FLOAT), axis=-1)
    y = ctx.op("Div", weighted, ctx.op("Add", weights, ctx.scalar(eps, FLOAT)))
    return ctx.cast(ctx.op("Reshape", y, ctx.ints(0, 0, heads * width)), ctx.resolve(node.outputs[0].dtype))
