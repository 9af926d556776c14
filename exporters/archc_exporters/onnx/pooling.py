"""One vector for a whole text: a row that is picked, or a product with shares. No reduction that CUDA needs cuDNN for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import pooling as ops
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.step import end_token, last_token, new_tokens
from archc_exporters.onnx.weights import NUMPY_DTYPES

INT64 = ir.DataType.INT64


def pool(ctx: Lowering, node: Node, x: ir.Value, padding: ir.Value | None = None) -> ir.Value:
    """(batch, seq, width) -> (batch, width)."""
    op = node.op
    assert isinstance(op, ops.Pool)
    if not ctx.is_whole:
        ctx.note("GatherND of each row's last valid token")
        last = x if ctx.target.prune_head else last_token(ctx, x)
        return ctx.op("Squeeze", last, ctx.ints(1))
    if op.token == "mean":
        ctx.note("MatMul with each token's share")
        return ctx.op("Squeeze", ctx.op("MatMul", _shares(ctx, node, padding), x), ctx.ints(1))
    if padding is None:
        ctx.note("Gather")
        return ctx.op("Gather", x, ctx.scalar(0 if op.token == "first" else -1, INT64), axis=1)
    ctx.note("GatherND by the number of tokens before the first or the last that is no padding")
    return ctx.op("GatherND", x, end_token(ctx, padding, first=op.token == "first"), batch_dims=1)


def _shares(ctx: Lowering, node: Node, padding: ir.Value | None) -> ir.Value:
    """Share of each token in the mean, (batch or 1, 1, seq)."""
    if padding is not None:
        mask = ctx.cast(padding, ir.DataType.FLOAT)
        count = ctx.op("Max", ctx.op("ReduceSum", mask, ctx.ints(1), keepdims=1), ctx.scalar(1.0, ir.DataType.FLOAT))
        return ctx.op("Unsqueeze", ctx.cast(ctx.op("Div", mask, count), ctx.dtype), ctx.ints(1))
    tokens = node.inputs[0].shape[1]
    if isinstance(tokens, int):
        return ctx.constant(np.full((1, 1, tokens), 1 / tokens, NUMPY_DTYPES[ctx.dtype]))
    one, count = ctx.scalar(1.0, ir.DataType.FLOAT), ctx.cast(new_tokens(ctx), ir.DataType.FLOAT)
    share = ctx.cast(ctx.op("Div", one, count), ctx.dtype)
    shape = ctx.op("Concat", ctx.ints(1, 1), new_tokens(ctx), axis=0)
    return ctx.op("Expand", share, shape)
