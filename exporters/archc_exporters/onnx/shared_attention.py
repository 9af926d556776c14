"""Softmax attention over the keys and values of an earlier layer, which has written those of the new tokens already."""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops.shared_attention import SharedAttention
from archc_exporters.onnx.attention import attend_ring, over_capacity
from archc_exporters.onnx.caches import from_heads, to_heads
from archc_exporters.onnx.context import Lowering


def shared_attention(
    ctx: Lowering, node: Node, q: ir.Value, keys: ir.Value, values: ir.Value, *further: ir.Value
) -> ir.Value:
    """Attention-24 or plain products over the earlier layer's cache, or over its [ring | new tokens]; nothing is written."""
    op = node.op
    assert isinstance(op, SharedAttention)
    q = to_heads(ctx, q, op.num_heads, op.key_dim)
    if op.ring_rows() is None:
        o = over_capacity(ctx, node, op, (q, keys, values), *further)
    else:
        ctx.note("Attention over the [ring | new tokens] of an earlier layer under a float mask")
        o = attend_ring(ctx, node, op, (q, keys, values))
    return from_heads(ctx, o, op.num_heads * op.value_dim)
