"""Maxout: no reduction that CUDA needs cuDNN for."""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops.maxout import Maxout
from archc_exporters.onnx.context import Lowering


def maxout(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """(batch, seq, width x pool) -> (batch, seq, width)."""
    assert isinstance(node.op, Maxout)
    pool, width = node.op.pool_size, node.outputs[0].width
    if pool == 1:
        return x
    ctx.note("Split and Max")
    channels = ctx.op("Reshape", x, ctx.ints(0, 0, width, pool))
    parts = ctx.ops("Split", channels, ctx.ints(*(1,) * pool), dtypes=(None,) * pool, axis=-1)
    return ctx.op("Squeeze", ctx.op("Max", *parts), ctx.ints(-1))
