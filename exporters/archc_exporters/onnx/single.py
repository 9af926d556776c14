"""One new token a sequence over rows in place: two plain products whose rows are the heads that share a key.

Attention-24 would copy the rows for every mask or sink; here a sink is one more column of the scores.
"""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops.attention import Attention
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.weights import Array


def attend_one(
    ctx: Lowering, node: Node, op: Attention, qkv: tuple[ir.Value, ir.Value, ir.Value], mask: ir.Value
) -> ir.Value:
    """Query (batch, N, 1, H) over keys (batch, K, T, H) and values: (batch, N, 1, V). The mask is (batch, 1 or N, 1, T)."""
    q, keys, values = qkv
    groups = op.num_heads // op.num_kv_heads
    heads = ctx.op("Reshape", q, ctx.ints(0, op.num_kv_heads, groups, op.key_dim))
    scores = ctx.op("FusedMatMul", heads, keys, domain=MS, transB=1, alpha=op.scale)
    if op.soft_cap is not None:
        cap = ctx.scalar(op.soft_cap)
        scores = ctx.op("Mul", ctx.op("Tanh", ctx.op("Div", scores, cap)), cap)
    if op.slopes is not None or op.has_bias:
        mask = ctx.op("Reshape", mask, ctx.ints(0, op.num_kv_heads, groups, -1))
    scores = ctx.op("Add", scores, mask)
    if op.sinks:
        scores = ctx.op("Concat", scores, _sink_column(ctx, node, op, groups), axis=-1)
    shares = ctx.op("Softmax", scores, axis=-1)
    if op.sinks:
        shares = ctx.op("Slice", shares, ctx.ints(0), ctx.ints(-1), ctx.ints(3))
    return ctx.op("Reshape", ctx.op("MatMul", shares, values), ctx.ints(0, op.num_heads, 1, op.value_dim))


def _sink_column(ctx: Lowering, node: Node, op: Attention, groups: int) -> ir.Value:
    """The logit of every head, (batch, K, G, 1)."""
    shape = (1, op.num_kv_heads, groups, 1)

    def by_group(sinks: Array) -> Array:
        return sinks.reshape(shape)

    sinks = ctx.weight(node, "sinks", tag="groups", shape=shape, transform=by_group)

    def make() -> ir.Value:
        batch = ctx.op("Shape", ctx.inputs["input_ids"], dtype=ir.DataType.INT64, start=0, end=1)
        return ctx.op("Concat", batch, ctx.ints(1, 1, 1), axis=0)

    return ctx.op("Expand", sinks, ctx.shared("one a sequence", make))
