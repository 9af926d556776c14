"""Attention to projected keys and values."""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import linformer as ops
from archc_exporters.onnx.context import Lowering


def linformer_attention(
    ctx: Lowering,
    node: Node,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    e: ir.Value,
    f: ir.Value,
    padding: ir.Value | None = None,
) -> ir.Value:
    """Plain products and a Softmax: rows to attend to are a fixed few, and padding is left out of their sums."""
    op = node.op
    assert isinstance(op, ops.LinformerAttention)
    ctx.note("MatMul over the text, then MatMul, Softmax, MatMul over its rows: no mask is left for a fused attention")
    dtype, heads, width = ctx.resolve(node.outputs[0].dtype), op.num_heads, op.head_dim
    q, k, v, e, f = (ctx.cast(x, dtype) for x in (q, k, v, e, f))
    if padding is not None:
        seen = ctx.op("Unsqueeze", ctx.cast(padding, dtype), ctx.ints(2))
        e, f = (ctx.op("Mul", x, seen) for x in (e, f))

    def by_head(x: ir.Value, size: int, perm: list[int]) -> ir.Value:
        return ctx.op("Transpose", ctx.op("Reshape", x, ctx.ints(0, 0, -1, size)), perm=perm)

    tokens, channels = [0, 2, 1, 3], [0, 2, 3, 1]
    keys = ctx.op("MatMul", by_head(k, width, channels), by_head(e, op.num_rows, tokens))
    values = ctx.op("MatMul", by_head(f, op.num_rows, channels), by_head(v, width, tokens))
    query = ctx.op("Mul", by_head(q, width, tokens), ctx.scalar(op.scale, dtype))
    weights = ctx.op("Softmax", ctx.op("MatMul", query, keys), axis=-1)
    y = ctx.op("Transpose", ctx.op("MatMul", weights, values), perm=tokens)
    return ctx.op("Reshape", y, ctx.ints(0, 0, heads * width))
