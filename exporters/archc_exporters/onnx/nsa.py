"""Native sparse attention: compressed rows and their scores, then a mask over the chosen blocks, or their rows for one token.

Legend of shapes: N heads, K key-value heads, G = N / K, R compressed rows, J blocks, T rows in use, l rows of a block.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import nsa as ops
from archc_exporters.onnx.caches import append, from_heads, to_heads
from archc_exporters.onnx.choice import (
    choose,
    first_rows,
    new_block_rows,
    rows_mask,
    rows_of_one,
    used_blocks,
    write_blocks,
)
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.elementwise import activate
from archc_exporters.onnx.step import capacity_rows, is_many, new_tokens, positions, seq_column, used_rows
from archc_exporters.onnx.transforms import Transposed
from archc_exporters.onnx.weights import Array

INT64, BOOL, FLOAT = ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT


def native_sparse_attention(
    ctx: Lowering,
    node: Node,
    q: ir.Value,
    compress_k: ir.Value,
    compress_v: ir.Value,
    k: ir.Value,
    v: ir.Value,
) -> list[ir.Value]:
    """(compressed, selected): softmax of compressed rows in float32; Attention under a mask for many tokens, a gather for one."""
    op = node.op
    assert isinstance(op, ops.NativeSparseAttention)
    ctx.note(
        "blocks compressed in every call, overwritten until they are complete; their softmax in float32 and TopK; "
        f"If(seq > 1): Attention under a mask of {op.num_selected_blocks} blocks a key-value head, else their rows gathered"
    )
    q = to_heads(ctx, q, op.num_heads, op.key_dim)
    keys = append(ctx, node, "key", to_heads(ctx, k, op.num_kv_heads, op.key_dim))
    values = append(ctx, node, "value", to_heads(ctx, v, op.num_kv_heads, op.value_dim))
    small = (
        _compressed(ctx, node, op, "key", to_heads(ctx, compress_k, op.num_kv_heads, op.key_dim)),
        _compressed(ctx, node, op, "value", to_heads(ctx, compress_v, op.num_kv_heads, op.value_dim)),
    )
    compressed, score = _compressed_branch(ctx, op, q, small, keys)
    chosen = choose(
        ctx,
        score,
        keys,
        block=op.select_block_size,
        count=op.num_selected_blocks,
        initial=op.num_initial_blocks,
        local=op.num_local_blocks,
    )
    selected = ctx.choose(
        is_many(ctx),
        lambda: (_many(ctx, op, q, keys, values, (chosen, score)),),
        lambda: (_one(ctx, op, q, keys, values, chosen),),
        (ctx.dtype,),
    )[0]
    width = op.num_heads * op.value_dim
    return [from_heads(ctx, compressed, width), from_heads(ctx, selected, width)]


def _compressed(ctx: Lowering, node: Node, op: ops.NativeSparseAttention, name: str, new: ir.Value) -> ir.Value:
    """The cache of compressed rows with those of the blocks that end in new tokens (batch, K, seq, width)."""
    waiting, heads = op.compress_block_size - 1, op.num_kv_heads
    joined = ctx.op("Concat", ctx.past(node, f"pending_{name}"), new, axis=2)

    def kept() -> ir.Value:
        row = ctx.op("Unsqueeze", ctx.op("Add", seq_column(ctx), ctx.constant(np.arange(waiting))), ctx.ints(1, 3))
        return row if heads == 1 else ctx.op("Expand", row, ctx.ints(1, heads, 1, 1))

    rows = ctx.shared(("pending rows", waiting, heads), kept)
    ctx.present(node, f"pending_{name}", ctx.op("GatherND", joined, rows, batch_dims=2))
    first, rows = new_block_rows(
        ctx, stride=op.compress_stride, block=op.compress_block_size, held=waiting, heads=heads
    )
    width = op.compress_block_size * node.params[f"{name}_position"].shape[1]

    def flattened(position: Array) -> Array:
        return position.reshape(-1)

    blocks = ctx.op("Reshape", ctx.op("GatherND", joined, rows, batch_dims=2), ctx.ints(0, 0, -1, width))
    position = ctx.weight(node, f"{name}_position", tag="flat", shape=(width,), transform=flattened)
    blocks = ctx.op("Add", blocks, position)
    blocks = activate(ctx, ctx.op("MatMul", blocks, _matrix(ctx, node, f"{name}_up")), "silu")
    blocks = ctx.op("MatMul", blocks, _matrix(ctx, node, f"{name}_down"))
    role = f"compressed_{name}"
    return ctx.present(node, role, write_blocks(ctx, ctx.past(node, role), blocks, first))


def _matrix(ctx: Lowering, node: Node, role: str) -> ir.Value:
    return ctx.weight(
        node, role, tag="transposed", shape=tuple(reversed(node.params[role].shape)), transform=Transposed()
    )


def _compressed_branch(
    ctx: Lowering, op: ops.NativeSparseAttention, q: ir.Value, small: tuple[ir.Value, ir.Value], cache: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """(output (batch, N, seq, V), scores of blocks float32 (batch, K, seq, J)) of queries (batch, N, seq, H)."""
    heads, group = op.num_kv_heads, op.num_heads // op.num_kv_heads
    count = used_blocks(ctx, cache, op.compress_stride)
    keys, values = (ctx.op("Slice", x, ctx.ints(0), count, ctx.ints(2)) for x in small)

    def make() -> tuple[ir.Value, ir.Value, ir.Value]:
        stride, last = (ctx.scalar(n, INT64) for n in (op.compress_stride, op.compress_block_size - 1))
        end = ctx.op("Add", ctx.op("Mul", first_rows(ctx, cache, count), stride), last)
        query = ctx.op("Unsqueeze", positions(ctx), ctx.ints(1, 2, 4))
        by_group = ctx.op("Concat", ctx.ints(0, heads, group), new_tokens(ctx), count, axis=0)
        by_key = ctx.op("Concat", ctx.ints(0, heads, -1), count, axis=0)
        return ctx.op("LessOrEqual", end, query, dtype=BOOL), by_group, by_key

    key = ("compressed seen", op.compress_stride, op.compress_block_size, heads, group)
    seen, by_group, by_key = ctx.shared(key, make)
    rows = ctx.op("Reshape", q, ctx.ints(0, heads, -1, op.key_dim))
    scores = ctx.op("FusedMatMul", rows, keys, domain=MS, transB=1, alpha=op.scale)
    scores = ctx.cast(ctx.op("Reshape", scores, by_group), FLOAT)
    shares = ctx.op("Softmax", ctx.op("Where", seen, scores, ctx.scalar(-1e30, FLOAT), dtype=FLOAT), axis=-1)
    # Who sees no row gets zeros, and not the mean of all.
    shares = ctx.op("Where", seen, shares, ctx.scalar(0.0, FLOAT), dtype=FLOAT)
    mixed = ctx.op("MatMul", ctx.cast(ctx.op("Reshape", shares, by_key), ctx.dtype), values)
    output = ctx.op("Reshape", mixed, ctx.ints(0, op.num_heads, -1, op.value_dim))
    return output, _block_scores(ctx, op, ctx.op("ReduceSum", shares, ctx.ints(2), keepdims=0), count, cache)


def _block_scores(
    ctx: Lowering, op: ops.NativeSparseAttention, share: ir.Value, count: ir.Value, cache: ir.Value
) -> ir.Value:
    """(batch, K, seq, R) -> (batch, K, seq, J): a compressed block counts once a stride that it shares with a block."""
    per_block = op.select_block_size // op.compress_stride
    per_row = op.compress_block_size // op.compress_stride

    def make() -> tuple[ir.Value, list[ir.Value]]:
        strides = ctx.op("Mul", used_blocks(ctx, cache, op.select_block_size), ctx.ints(per_block))
        pads = ctx.op("Concat", ctx.ints(0, 0, 0, per_row - 1, 0, 0, 0), ctx.op("Sub", strides, count), axis=0)
        return pads, [ctx.op("Add", strides, ctx.ints(number)) for number in range(per_row)]

    pads, ends = ctx.shared(("strides", op.select_block_size, op.compress_block_size, op.compress_stride), make)
    padded = ctx.op("Pad", share, pads)
    shifted = [ctx.op("Slice", padded, ctx.ints(number), end, ctx.ints(3)) for number, end in enumerate(ends)]
    over = shifted[0]
    for each in shifted[1:]:
        over = ctx.op("Add", over, each)
    return ctx.op("ReduceSum", ctx.op("Reshape", over, ctx.ints(0, 0, 0, -1, per_block)), ctx.ints(4), keepdims=0)


def _many(
    ctx: Lowering,
    op: ops.NativeSparseAttention,
    q: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    choice: tuple[ir.Value, ir.Value],
) -> ir.Value:
    """Key-value heads become sequences, so that no mask is copied for a query head: (batch, N, seq, V)."""
    end = used_rows(ctx, capacity_rows(ctx, keys))
    mask = ctx.op("Reshape", rows_mask(ctx, *choice, keys, op.select_block_size), ctx.ints(-1, 1, 0, 0))
    query = ctx.op("Reshape", q, ctx.ints(-1, op.num_heads // op.num_kv_heads, 0, 0))
    k, v = (
        ctx.op("Reshape", ctx.op("Slice", x, ctx.ints(0), end, ctx.ints(2)), ctx.ints(-1, 1, 0, 0))
        for x in (keys, values)
    )
    return ctx.op("Reshape", ctx.op("Attention", query, k, v, mask, scale=op.scale), ctx.ints(-1, op.num_heads, 0, 0))


def _one(
    ctx: Lowering, op: ops.NativeSparseAttention, q: ir.Value, keys: ir.Value, values: ir.Value, chosen: ir.Value
) -> ir.Value:
    """Two plain products over the rows of the chosen blocks, whose rows are the heads of a group: (batch, N, 1, V)."""
    rows, mask = rows_of_one(ctx, chosen, op.select_block_size)
    at = ctx.op("Unsqueeze", rows, ctx.ints(3))
    k, v = (ctx.op("GatherND", x, at, batch_dims=2) for x in (keys, values))
    heads = ctx.op("Reshape", q, ctx.ints(0, op.num_kv_heads, -1, op.key_dim))
    scores = ctx.op("FusedMatMul", heads, k, domain=MS, transB=1, alpha=op.scale)
    shares = ctx.op("Softmax", ctx.op("Add", scores, mask), axis=-1)
    return ctx.op("Reshape", ctx.op("MatMul", shares, v), ctx.ints(0, op.num_heads, 1, op.value_dim))


def head_gate(ctx: Lowering, node: Node, x: ir.Value, gate: ir.Value) -> ir.Value:
    """A product a head between two Reshapes."""
    heads, width = node.inputs[1].width, node.inputs[0].width
    split = ctx.op("Reshape", x, ctx.ints(0, 0, heads, width // heads))
    return ctx.op("Reshape", ctx.op("Mul", split, ctx.op("Unsqueeze", gate, ctx.ints(3))), ctx.ints(0, 0, width))
