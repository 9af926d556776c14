"""Hyper-connections by standard ops: weights of the mix in float32, the mix itself in the model's dtype.

Legend of shapes: n streams, D width of one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import hyper_connection as ops
from archc_exporters.onnx.context import KEEP_FLOAT, MS, Lowering
from archc_exporters.onnx.transforms import Transposed
from archc_exporters.onnx.weights import Array

FLOAT = ir.DataType.FLOAT


def hyper_connection(ctx: Lowering, node: Node, streams: ir.Value) -> list[ir.Value]:
    """(x, post, comb): norm, map and Sinkhorn's iteration in float32, the iteration unrolled."""
    op = node.op
    assert isinstance(op, ops.HyperConnection)
    ctx.note("standard ops in float32; Sinkhorn's iteration is unrolled: ReduceSum, Add, Div for rows, then columns")
    count = op.num_streams
    wide = ctx.cast(streams, FLOAT)
    sizes = (count, count, count * count)
    numbers = _numbers(ctx, node, wide, sizes, op.norm_eps)
    pre, post, comb = ctx.ops("Split", numbers, ctx.ints(*sizes), dtypes=(None,) * 3, axis=-1)
    post = ctx.op("Mul", ctx.op("Sigmoid", post), ctx.scalar(2.0, FLOAT))
    eps = ctx.scalar(op.eps, FLOAT)
    comb = ctx.op("Reshape", comb, ctx.ints(0, 0, count, count))
    comb = ctx.op("Add", ctx.op("Softmax", comb, axis=-1), eps)

    def normalised(x: ir.Value, axis: int) -> ir.Value:
        return ctx.op("Div", x, ctx.op("Add", ctx.op("ReduceSum", x, ctx.ints(axis), keepdims=1), eps))

    comb = normalised(comb, 2)
    for _ in range(op.sinkhorn_iters - 1):
        comb = normalised(normalised(comb, 3), 2)
    comb = ctx.op("Reshape", comb, ctx.ints(0, 0, count * count))
    return [_read(ctx, wide, pre, count, node.inputs[0].width // count, op.eps), post, comb]


def hyper_head(ctx: Lowering, node: Node, streams: ir.Value) -> ir.Value:
    """The mean of the streams behind the last layer."""
    op = node.op
    assert isinstance(op, ops.HyperHead)
    ctx.note("standard ops in float32")
    wide = ctx.cast(streams, FLOAT)
    numbers = _numbers(ctx, node, wide, (op.num_streams,), op.norm_eps)
    return _read(ctx, wide, numbers, op.num_streams, node.inputs[0].width // op.num_streams, op.eps)


def hyper_mix(ctx: Lowering, node: Node, streams: ir.Value, y: ir.Value, post: ir.Value, comb: ir.Value) -> ir.Value:
    """A product of n x n and n x D a token, and the branch times a number a stream."""
    op = node.op
    assert isinstance(op, ops.HyperMix)
    ctx.note("FusedMatMul of n x n and n x D a token, Mul and Add")
    count, width = op.num_streams, node.inputs[0].width
    by_stream = ctx.op("Reshape", streams, ctx.ints(0, 0, count, width // count))
    square = ctx.op("Reshape", ctx.cast(comb, ctx.dtype), ctx.ints(0, 0, count, count))
    mixed = ctx.op("FusedMatMul", square, by_stream, domain=MS, transA=1)
    column = ctx.op("Reshape", ctx.cast(post, ctx.dtype), ctx.ints(0, 0, count, 1))
    branch = ctx.op("Mul", column, ctx.op("Reshape", y, ctx.ints(0, 0, 1, width // count)))
    return ctx.op("Reshape", ctx.op("Add", mixed, branch), ctx.ints(0, 0, width))


def _numbers(ctx: Lowering, node: Node, wide: ir.Value, sizes: tuple[int, ...], norm_eps: float) -> ir.Value:
    """The map of the normed streams, times the scale of each part and plus its base, float32 (batch, seq, numbers)."""
    inner, count = node.inputs[0].width, sum(sizes)
    ones = ctx.constant(np.ones(inner, np.float32))
    weight = ctx.weight(node, "fn", tag="transposed", shape=(inner, count), transform=Transposed())
    weight.meta[KEEP_FLOAT] = "how residual streams mix, in every layer again"

    def repeated(scale: Array) -> Array:
        return np.repeat(scale, sizes)

    scale = ctx.weight(node, "scale", tag="repeated", shape=(count,), transform=repeated)
    normed = ctx.op("RMSNormalization", wide, ones, axis=-1, epsilon=norm_eps)
    return ctx.op("Add", ctx.op("Mul", ctx.op("MatMul", normed, weight), scale), ctx.weight(node, "base"))


def _read(ctx: Lowering, wide: ir.Value, numbers: ir.Value, count: int, width: int, eps: float) -> ir.Value:
    """The streams as one, each times sigmoid of its number and eps, in the model's dtype."""
    pre = ctx.op("Add", ctx.op("Sigmoid", numbers), ctx.scalar(eps, FLOAT))
    row = ctx.op("Reshape", pre, ctx.ints(0, 0, 1, count))
    x = ctx.op("MatMul", row, ctx.op("Reshape", wide, ctx.ints(0, 0, count, width)))
    return ctx.cast(ctx.op("Reshape", x, ctx.ints(0, 0, width)), ctx.dtype)
