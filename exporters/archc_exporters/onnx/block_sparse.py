"""Block-sparse attention in standard operators; short texts, where all see all, take the other branch of an If.

Legend of shapes: N heads, H head width, C blocks, W columns a block, T keys.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from archc.errors import GraphError
from archc.ir.values import Node
from archc.ops import block_sparse as ops
from archc_exporters.onnx.caches import from_heads, to_heads
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.local_global import around, padded

BOOL, INT64, FLOAT = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.FLOAT
LOW = -1e9


def block_sparse_attention(
    ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value, padding: ir.Value | None = None
) -> ir.Value:
    """If(seq is small): plain attention, else products of blocks with the five that they meet.

    Raises:
        GraphError: blocks are drawn: how many there are is known at run time only.
    """
    op = node.op
    assert isinstance(op, ops.BlockSparseAttention)
    if op.drawn:
        raise GraphError(
            f"{ctx.path}: random blocks are drawn for a number of blocks, which a file learns at run time only; export "
            "without random_seed"
        )
    ctx.note(
        f"If(seq > {op.full_tokens}): MatMul of blocks of {op.block_size} with the ends and their neighbours, else all with "
        "all; Softmax in float32"
    )
    heads = [to_heads(ctx, x, op.num_heads, op.head_dim) for x in (q, k, v)]
    tokens = ctx.op("Shape", q, dtype=INT64, start=1, end=2)
    is_long = ctx.shared(
        ("more columns than", op.full_tokens),
        lambda: ctx.op("Squeeze", ctx.op("Greater", tokens, ctx.ints(op.full_tokens), dtype=BOOL), ctx.ints(0)),
    )
    valid = None if padding is None else ctx.cast(padding, FLOAT)
    if valid is None:
        shape = ctx.op("Shape", q, dtype=INT64, start=0, end=2)
        valid = ctx.filled(shape, 1.0, FLOAT)
    found = ctx.choose(
        is_long,
        lambda: (_blocked(ctx, op, heads, valid),),
        lambda: (_plain(ctx, op, heads[0], heads[1], heads[2], _low(ctx, valid, 1, 2)),),
        (ctx.dtype,),
    )[0]
    return from_heads(ctx, found, op.num_heads * op.head_dim)


def _low(ctx: Lowering, ones: ir.Value, *axes: int) -> ir.Value:
    """0 where there is a one, a low number elsewhere, with more dimensions."""
    seen = ctx.op("Greater", ones, ctx.scalar(0.5, FLOAT), dtype=BOOL)
    mask = ctx.op("Where", seen, ctx.scalar(0.0, FLOAT), ctx.scalar(LOW, FLOAT), dtype=FLOAT)
    return ctx.op("Unsqueeze", mask, ctx.ints(*axes))


def _plain(
    ctx: Lowering, op: ops.BlockSparseAttention, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value, *, rank: int = 4
) -> ir.Value:
    """Softmax attention over the last two dimensions."""
    turned = ctx.op("Transpose", k, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = ctx.cast(ctx.op("Mul", ctx.op("MatMul", q, turned), ctx.scalar(op.scale)), FLOAT)
    weights = ctx.op("Softmax", ctx.op("Add", scores, mask), axis=-1)
    return ctx.op("MatMul", ctx.cast(weights, ctx.dtype), v)


def _blocked(ctx: Lowering, op: ops.BlockSparseAttention, heads: list[ir.Value], valid: ir.Value) -> ir.Value:
    """(batch, N, seq, H) of more than the few blocks in which all see all."""
    # Counted inside of the branch: a number from outside would be copied to the device and back.
    tokens = ctx.op("Shape", heads[0], dtype=INT64, start=2, end=3)
    size, dim, last = op.block_size, op.head_dim, np.iinfo(np.int64).max
    zero, two, end = ctx.ints(0), ctx.ints(2), ctx.ints(last)
    rest = ctx.op("Mod", ctx.op("Neg", tokens), ctx.ints(size))
    q, k, v = (padded(ctx, x, 0, rest, axis=2, rank=4) for x in heads)
    ones = padded(ctx, valid, 0, rest, axis=1, rank=2)
    both = ctx.op(
        "Concat",
        ctx.op("Slice", q, zero, ctx.ints(size), two),
        ctx.op("Slice", q, ctx.ints(-size), end, two),
        axis=2,
    )
    ends = _plain(ctx, op, both, k, v, _low(ctx, ones, 1, 2))

    def met(x: ir.Value, shape: tuple[int, ...], axis: int) -> ir.Value:
        """[first | neighbours and itself | last] of each block between the ends; their tokens lie on ``axis`` + 1."""
        three = around(ctx, x, shape, axis=axis)
        blocks = ctx.op("Reshape", x, ctx.ints(*shape))
        count = ctx.op("Shape", three, dtype=INT64, start=axis, end=axis + 1)
        parts = [
            ctx.op("Slice", blocks, ctx.ints(start), ctx.ints(stop), ctx.ints(axis))
            for start, stop in ((0, 1), (-1, last))
        ]
        ones_ = [ctx.ints(1)] * len(shape)
        target = ctx.op("Concat", *ones_[:axis], count, *ones_[axis + 1 :], axis=0)
        first, final = (ctx.op("Expand", part, target) for part in parts)
        return ctx.op("Concat", first, three, final, axis=axis + 1)

    keys, values = (met(x, (0, 0, -1, size, dim), 2) for x in (k, v))
    queries = ctx.op("Slice", ctx.op("Reshape", q, ctx.ints(0, 0, -1, size, dim)), ctx.ints(1), ctx.ints(-1), two)
    mask = _mask(ctx, op, met(ones, (0, -1, size), 1))
    between = ctx.op(
        "Reshape", _plain(ctx, op, queries, keys, values, mask, rank=5), ctx.ints(0, op.num_heads, -1, dim)
    )
    whole = ctx.op(
        "Concat",
        ctx.op("Slice", ends, zero, ctx.ints(size), two),
        between,
        ctx.op("Slice", ends, ctx.ints(size), end, two),
        axis=2,
    )
    return ctx.op("Slice", whole, zero, tokens, two)


def _mask(ctx: Lowering, op: ops.BlockSparseAttention, ones: ir.Value) -> ir.Value:
    """What scores are added, float32 (batch, 1, C - 2, 1, T): an end that is a neighbour counts once, the first block more."""
    place = np.arange(5 * op.block_size) // op.block_size
    count = ctx.op("Squeeze", ctx.op("Shape", ones, dtype=INT64, start=1, end=2), ctx.ints(0))
    one = ctx.scalar(1, INT64)
    block = ctx.op("Unsqueeze", ctx.op("Range", ctx.scalar(0, INT64), count, one), ctx.ints(0, 2))
    is_first = ctx.op("Equal", block, ctx.constant(np.zeros((1, 1, 1), np.int64)), dtype=BOOL)
    is_last = ctx.op("Equal", block, ctx.op("ReduceMax", block, keepdims=1), dtype=BOOL)
    twice = ctx.op(
        "Or",
        ctx.op("And", is_first, ctx.constant((place == 1)[None, None])),
        ctx.op("And", is_last, ctx.constant((place == 3)[None, None])),
    )
    seen = ctx.op("And", ctx.op("Greater", ones, ctx.scalar(0.5, FLOAT), dtype=BOOL), ctx.op("Not", twice))
    more = np.where(place == 0, math.log1p(op.num_random_blocks), 0.0).astype(np.float32)
    mask = ctx.op("Where", seen, ctx.constant(more[None, None]), ctx.scalar(LOW, FLOAT), dtype=FLOAT)
    return ctx.op("Unsqueeze", mask, ctx.ints(1, 3))
