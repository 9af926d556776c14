"""Attention over depth in standard ops."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops.attention_residual import AttentionResidual
from archc_exporters.onnx.context import KEEP_FLOAT, Lowering
from archc_exporters.onnx.weights import NUMPY_DTYPES, Array


def attention_residual(ctx: Lowering, node: Node, *values: ir.Value) -> ir.Value:
    """A norm and a product with one column for each value, a softmax over them, and their sum; one value is itself."""
    op = node.op
    assert isinstance(op, AttentionResidual)
    if len(values) == 1:
        return values[0]
    ctx.note("RMSNormalization and MatMul for each value that is read, Softmax over them, and their sum")
    width = node.inputs[0].width

    def as_column(norm: Array, proj: Array) -> Array:
        return (norm.astype(np.float32) * proj[0].astype(np.float32)).reshape(width, 1)

    query = ctx.weight(node, "norm", "proj", tag="query", shape=(width, 1), transform=as_column)
    query.meta[KEEP_FLOAT] = "a column that scores values of the residual stream"
    ones = ctx.constant(np.ones(width, NUMPY_DTYPES[ctx.dtype]))
    scores = [
        ctx.op("MatMul", ctx.op("RMSNormalization", value, ones, axis=-1, epsilon=op.eps), query) for value in values
    ]
    shares = ctx.op("Softmax", ctx.op("Concat", *scores, axis=-1), axis=-1)
    parts = ctx.ops("Split", shares, ctx.ints(*(1,) * len(values)), dtypes=(None,) * len(values), axis=-1)
    total = ctx.op("Mul", values[0], parts[0])
    for value, part in zip(values[1:], parts[1:], strict=True):
        total = ctx.op("Add", total, ctx.op("Mul", value, part))
    return total
