"""Attention by feature maps. Features, sums and state are float32."""

from __future__ import annotations

import numpy as np
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
    values = ctx.op("Reshape", ctx.cast(v, FLOAT), ctx.ints(0, 0, heads, width))
    values = ctx.op("Pad", values, ctx.ints(0, 1), ctx.scalar(1.0, FLOAT), ctx.ints(3))
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
    weighted, weights = ctx.ops("Split", sums, ctx.ints(width, 1), dtypes=(FLOAT, FLOAT), axis=-1)
    eps = ctx.constant(np.array(op.eps, np.float32))
    y = ctx.op("Div", weighted, ctx.op("Add", weights, eps))
    return ctx.cast(ctx.op("Reshape", y, ctx.ints(0, 0, heads * width)), ctx.resolve(node.outputs[0].dtype))
