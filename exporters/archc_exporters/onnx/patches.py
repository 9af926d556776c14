"""Pictures as tokens."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import patches as ops
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.weights import Array


def patch_projection(ctx: Lowering, node: Node, pixels: ir.Value) -> ir.Value:
    """Patches side by side and one MatMul: a convolution whose step is its kernel, which on CUDA would want cuDNN."""
    op = node.op
    assert isinstance(op, ops.PatchProjection)
    _, channels, height, width = node.inputs[0].shape
    assert isinstance(channels, int)
    assert isinstance(height, int)
    assert isinstance(width, int)
    size = op.patch_size
    down, across, inner = height // size, width // size, channels * size * size
    ctx.note("Reshape, Transpose and MatMul: the kernel is as large as its step")
    grid = ctx.op("Reshape", pixels, ctx.ints(0, channels, down, size, across, size))
    patches = ctx.op("Transpose", grid, perm=[0, 2, 4, 1, 3, 5])
    rows = ctx.op("Reshape", patches, ctx.ints(0, down * across, inner))

    def flat(kernel: Array) -> Array:
        return np.ascontiguousarray(kernel.reshape(op.width, inner).T)

    weight = ctx.weight(node, "weight", tag="by_patch", shape=(inner, op.width), transform=flat)
    return ctx.op("Add", ctx.op("MatMul", rows, weight), ctx.weight(node, "bias"))


def first_token(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """Concat of the learned vector, one a row, and the tokens."""
    width = node.inputs[0].width
    ctx.note("Expand and Concat")

    def lone(vector: Array) -> Array:
        return vector.reshape(1, 1, width)

    weight = ctx.weight(node, "weight", tag="row", shape=(1, 1, width), transform=lone)
    batch = ctx.op("Shape", x, dtype=ir.DataType.INT64, start=0, end=1)
    shape = ctx.op("Concat", batch, ctx.ints(1, width), axis=0)
    return ctx.op("Concat", ctx.op("Expand", weight, shape), x, axis=1)
