"""Mixture of block attention: means of blocks, TopK of their products, then a mask over rows, or the chosen rows for one token.

Legend of shapes: N heads, K key-value heads, G = N / K, J blocks, R rows of the chosen ones, H width.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import moba as ops
from archc_exporters.onnx.caches import append, from_heads, to_heads
from archc_exporters.onnx.choice import choose, new_block_rows, rows_mask, rows_of_one, used_blocks, write_blocks
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.step import capacity_rows, is_many, used_rows

FLOAT = ir.DataType.FLOAT


def mixture_of_block_attention(ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
    """Attention under a mask a query head for many tokens, the rows of each head's blocks gathered for one."""
    op = node.op
    assert isinstance(op, ops.MixtureOfBlockAttention)
    ctx.note(
        "means of new blocks in every call, overwritten until they are complete; TopK in float32; If(seq > 1): Attention under a "
        f"mask of {op.topk} blocks a query head, else their rows gathered"
    )
    q = to_heads(ctx, q, op.num_heads, op.head_dim)
    keys = append(ctx, node, "key", to_heads(ctx, k, op.num_kv_heads, op.head_dim))
    values = append(ctx, node, "value", to_heads(ctx, v, op.num_kv_heads, op.head_dim))
    score = _gates(ctx, node, op, q, keys)
    chosen = choose(ctx, score, keys, block=op.block_size, count=op.topk)
    o = ctx.choose(
        is_many(ctx),
        lambda: (_many(ctx, op, q, keys, values, (chosen, score)),),
        lambda: (_one(ctx, op, q, keys, values, chosen),),
        (ctx.dtype,),
    )[0]
    return from_heads(ctx, o, op.num_heads * op.head_dim)


def _gates(ctx: Lowering, node: Node, op: ops.MixtureOfBlockAttention, q: ir.Value, keys: ir.Value) -> ir.Value:
    """Products of queries (batch, N, seq, H) with the mean keys of blocks, float32 (batch, N, seq, J)."""
    heads, group = op.num_kv_heads, op.num_heads // op.num_kv_heads
    first, rows = new_block_rows(ctx, stride=op.block_size, block=op.block_size, held=0, heads=heads)
    taken = ctx.cast(ctx.op("GatherND", keys, rows, batch_dims=2), FLOAT)
    blocks = ctx.op("Reshape", taken, ctx.ints(0, heads, -1, op.block_size, op.head_dim))
    means = ctx.cast(ctx.op("ReduceMean", blocks, ctx.ints(3), keepdims=0), ctx.dtype)
    cache = ctx.present(node, "block_key", write_blocks(ctx, ctx.past(node, "block_key"), means, first))
    used = ctx.op("Slice", cache, ctx.ints(0), used_blocks(ctx, keys, op.block_size), ctx.ints(2))
    if group > 1:
        used = ctx.op("Expand", ctx.op("Unsqueeze", used, ctx.ints(2)), ctx.ints(1, 1, group, 1, 1))
        used = ctx.op("Reshape", used, ctx.ints(0, op.num_heads, -1, op.head_dim))
    return ctx.cast(ctx.op("FusedMatMul", q, used, domain=MS, transB=1), FLOAT)


def _many(
    ctx: Lowering,
    op: ops.MixtureOfBlockAttention,
    q: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    choice: tuple[ir.Value, ir.Value],
) -> ir.Value:
    end = used_rows(ctx, capacity_rows(ctx, keys))
    k, v = (ctx.op("Slice", x, ctx.ints(0), end, ctx.ints(2)) for x in (keys, values))
    return ctx.op("Attention", q, k, v, rows_mask(ctx, *choice, keys, op.block_size), scale=op.scale)


def _one(
    ctx: Lowering, op: ops.MixtureOfBlockAttention, q: ir.Value, keys: ir.Value, values: ir.Value, chosen: ir.Value
) -> ir.Value:
    """Two plain products over rows that each query head takes of its key-value head: (batch, N, 1, H)."""
    rows, mask = rows_of_one(ctx, chosen, op.block_size)
    at = ctx.op("Unsqueeze", rows, ctx.ints(3))
    head = np.arange(op.num_heads).reshape(1, -1, 1, 1) // (op.num_heads // op.num_kv_heads)
    owner = ctx.op("Expand", ctx.constant(head), ctx.op("Shape", at, dtype=ir.DataType.INT64))
    at = ctx.op("Concat", owner, at, axis=3)
    k, v = (ctx.op("GatherND", x, at, batch_dims=1) for x in (keys, values))
    scores = ctx.op("FusedMatMul", q, k, domain=MS, transB=1, alpha=op.scale)
    return ctx.op("MatMul", ctx.op("Softmax", ctx.op("Add", scores, mask), axis=-1), v)
