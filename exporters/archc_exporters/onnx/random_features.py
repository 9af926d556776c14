"""Positive orthogonal random features. Directions and exponents are float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import random_features as ops
from archc_exporters.onnx.context import Lowering

FLOAT = ir.DataType.FLOAT


def random_features(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """A product with the directions, then Softmax for queries and Exp for keys; the directions are numbers of the file."""
    op = node.op
    assert isinstance(op, ops.RandomFeatures)
    ctx.note(
        "MatMul and Softmax or Exp in float32: an exponent rounded to half precision would be a weight of other size"
    )
    heads = node.inputs[0].width // op.head_dim
    y = ctx.op("Reshape", ctx.cast(x, FLOAT), ctx.ints(0, 0, heads, op.head_dim))
    y = ctx.op("Mul", y, ctx.scalar(op.scale**0.5, FLOAT))
    directions = np.ascontiguousarray(np.array(op.directions()).astype(np.float32).T)
    along = ctx.op("MatMul", y, ctx.constant(directions))
    if op.of == "query":
        features = ctx.op("Softmax", along, axis=-1)
    else:
        # The sum of squares as a product: reductions want cuDNN on CUDA, which nothing else here does.
        halves = ctx.constant(np.full((op.head_dim, 1), 0.5, np.float32))
        exponent = ctx.op("Sub", along, ctx.op("MatMul", ctx.op("Mul", y, y), halves))
        shift = op.shift()
        features = ctx.op("Exp", exponent if shift == 0.0 else ctx.op("Sub", exponent, ctx.scalar(shift, FLOAT)))
    return ctx.op("Reshape", features, ctx.ints(0, 0, heads * op.num_features))
