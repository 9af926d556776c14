"""Local windows and global tokens in standard operators: blocks of queries against three blocks of keys and the global ones.

Legend of shapes: N heads, H head width, C blocks, W tokens a block, G global tokens.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import local_global as ops
from archc_exporters.onnx.caches import from_heads, to_heads
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.step import end_token

BOOL, INT64, FLOAT = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.FLOAT
LOW = -1e9


def first_tokens(ctx: Lowering, node: Node, x: ir.Value, padding: ir.Value | None = None) -> ir.Value:
    """GatherND at the first places that are no padding."""
    assert isinstance(node.op, ops.FirstTokens)
    ctx.note("GatherND at the first tokens of each row")
    return _rows(ctx, x, _places(ctx, x, padding, node.op.count))


def local_global_attention(
    ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value, *further: ir.Value
) -> ir.Value:
    """Pad and Reshape to blocks, products of each with three of keys and with the global ones, one Softmax over both."""
    op = node.op
    assert isinstance(op, ops.LocalGlobalAttention)
    padding, *projected = further if op.has_padding else (None, *further)
    ctx.note(
        f"blocks of {op.side} tokens: MatMul with three blocks of keys and {op.num_global} global ones, Softmax in float32"
    )
    width, is_global = op.num_heads * op.head_dim, _is_global(ctx, op, q, padding)
    local = _local(ctx, op, (q, k, v), padding, is_global)
    if op.num_global == 0:
        return local
    places = _places(ctx, q, padding, op.num_global)
    if op.has_global_projections:
        global_q, global_k, global_v = (x for x in projected if x is not None)
    else:
        global_q, global_k, global_v = _rows(ctx, q, places), k, v
    queries, keys, values = (to_heads(ctx, x, op.num_heads, op.head_dim) for x in (global_q, global_k, global_v))
    scores = _scores(ctx, op, queries, keys, rank=4)
    if padding is not None:
        scores = ctx.op("Add", scores, ctx.op("Unsqueeze", _unseen(ctx, ctx.cast(padding, BOOL)), ctx.ints(1, 2)))
    weights = ctx.cast(ctx.op("Softmax", scores, axis=-1), ctx.dtype)
    found = from_heads(ctx, ctx.op("MatMul", weights, values), width)
    own = ctx.op(
        "Max", ctx.op("Min", _index(ctx, q, padding), ctx.scalar(op.num_global - 1, INT64)), ctx.scalar(0, INT64)
    )
    return ctx.op("Where", ctx.op("Unsqueeze", is_global, ctx.ints(2)), _rows(ctx, found, own), local, dtype=ctx.dtype)


def _local(
    ctx: Lowering,
    op: ops.LocalGlobalAttention,
    qkv: tuple[ir.Value, ir.Value, ir.Value],
    padding: ir.Value | None,
    is_global: ir.Value,
) -> ir.Value:
    """What every token sees as a local one, (batch, seq, N x H)."""
    q, k, v = (to_heads(ctx, x, op.num_heads, op.head_dim) for x in qkv)
    rest = _rest(ctx, op, qkv[0])
    zero, side, dim = ctx.ints(0), op.side, op.head_dim

    queries = ctx.op("Reshape", padded(ctx, q, 0, rest, axis=2, rank=4), ctx.ints(0, 0, -1, side, dim))
    beyond = ctx.op("Add", rest, ctx.ints(side))
    keys, values = (
        around(ctx, padded(ctx, x, side, beyond, axis=2, rank=4), (0, 0, -1, side, dim), axis=2) for x in (k, v)
    )
    scores = ctx.op("Add", _scores(ctx, op, queries, keys, rank=5), _band(ctx, op, padding, is_global, beyond))
    if op.num_global:
        global_k, global_v = (
            ctx.op(
                "Unsqueeze",
                to_heads(ctx, _rows(ctx, x, _places(ctx, x, padding, op.num_global)), op.num_heads, dim),
                ctx.ints(2),
            )
            for x in qkv[1:]
        )
        far = _scores(ctx, op, queries, global_k, rank=5)
        if padding is not None:
            there = ctx.op("Unsqueeze", _unseen(ctx, _global_valid(ctx, op, padding)), ctx.ints(1, 2, 3))
            far = ctx.op("Add", far, there)
        weights = ctx.cast(ctx.op("Softmax", ctx.op("Concat", scores, far, axis=-1), axis=-1), ctx.dtype)
        near = ctx.op("Slice", weights, zero, ctx.ints(3 * side), ctx.ints(4))
        other = ctx.op("Slice", weights, ctx.ints(3 * side), ctx.ints(3 * side + op.num_global), ctx.ints(4))
        found = ctx.op("Add", ctx.op("MatMul", near, values), ctx.op("MatMul", other, global_v))
    else:
        found = ctx.op("MatMul", ctx.cast(ctx.op("Softmax", scores, axis=-1), ctx.dtype), values)
    rows = ctx.op("Reshape", found, ctx.ints(0, op.num_heads, -1, dim))
    cut = ctx.op("Slice", rows, zero, _tokens(ctx, qkv[0]), ctx.ints(2))
    return from_heads(ctx, cut, op.num_heads * dim)


def _band(
    ctx: Lowering,
    op: ops.LocalGlobalAttention,
    padding: ir.Value | None,
    is_global: ir.Value,
    beyond: ir.Value,
) -> ir.Value:
    """What blocks see of three blocks of keys, as 0 or a low number, float32 (batch, 1, C, W, 3W), once for all layers."""

    def make() -> ir.Value:
        side = op.side
        valid = ctx.op("Not", is_global)
        if padding is not None:
            valid = ctx.op("And", valid, ctx.cast(padding, BOOL))
        ones = padded(ctx, ctx.cast(valid, FLOAT), side, beyond, axis=1, rank=2)
        near = ctx.op("Greater", around(ctx, ones, (0, -1, side), axis=1), ctx.scalar(0.5, FLOAT), dtype=BOOL)
        near = ctx.op("Unsqueeze", near, ctx.ints(2))
        query, key = np.arange(side)[:, None], np.arange(3 * side)[None] - side
        seen = ctx.op("And", near, ctx.constant((abs(query - key) <= side)[None, None]))
        # A row of padding may have nothing but padding in reach; it sees itself, so that none is empty.
        seen = ctx.op("Or", seen, ctx.constant((query == key)[None, None]))
        return ctx.op("Unsqueeze", _unseen(ctx, seen), ctx.ints(1))

    return ctx.shared(("local band", op.side, op.num_global, op.has_padding), make)


def padded(ctx: Lowering, x: ir.Value, before: int, after: ir.Value, *, axis: int, rank: int) -> ir.Value:
    """x of so many dimensions with zeros before and behind it along one of them; ``after`` is int64 [1]."""
    zero = ctx.ints(0)
    starts, ends = [zero] * rank, [zero] * rank
    starts[axis], ends[axis] = ctx.ints(before), after
    return ctx.op("Pad", x, ctx.op("Concat", *starts, *ends, axis=0))


def around(ctx: Lowering, x: ir.Value, shape: tuple[int, ...], *, axis: int) -> ir.Value:
    """x cut into blocks, each with the ones before and after it; blocks lie on ``axis``, their tokens on the next."""
    blocks = ctx.op("Reshape", x, ctx.ints(*shape))
    last = np.iinfo(np.int64).max
    three = [
        ctx.op("Slice", blocks, ctx.ints(start), ctx.ints(stop), ctx.ints(axis))
        for start, stop in ((0, -2), (1, -1), (2, last))
    ]
    return ctx.op("Concat", *three, axis=axis + 1)


def _scores(ctx: Lowering, op: ops.LocalGlobalAttention, queries: ir.Value, keys: ir.Value, *, rank: int) -> ir.Value:
    """Scaled products of the last two dimensions, float32."""
    turned = ctx.op("Transpose", keys, perm=[*range(rank - 2), rank - 1, rank - 2])
    return ctx.cast(ctx.op("Mul", ctx.op("MatMul", queries, turned), ctx.scalar(op.scale)), FLOAT)


def _unseen(ctx: Lowering, seen: ir.Value) -> ir.Value:
    """0 where seen, a low number elsewhere, float32."""
    return ctx.op("Where", seen, ctx.scalar(0.0, FLOAT), ctx.scalar(LOW, FLOAT), dtype=FLOAT)


def _tokens(ctx: Lowering, x: ir.Value) -> ir.Value:
    """Tokens of a value (batch, tokens, …), int64 [1]."""
    return ctx.op("Shape", x, dtype=INT64, start=1, end=2)


def _rest(ctx: Lowering, op: ops.LocalGlobalAttention, x: ir.Value) -> ir.Value:
    """Tokens that fill the last block, int64 [1]."""

    def make() -> ir.Value:
        return ctx.op("Mod", ctx.op("Neg", _tokens(ctx, x)), ctx.ints(op.side))

    return ctx.shared(("rest of a block", op.side), make)


def _index(ctx: Lowering, x: ir.Value, padding: ir.Value | None) -> ir.Value:
    """How many places each token stands behind its row's first, int64 (batch, tokens)."""

    def make() -> ir.Value:
        at = _at(ctx, x)
        if padding is not None:
            return ctx.op("Sub", at, end_token(ctx, padding, first=True))
        batch = ctx.op("Shape", x, dtype=INT64, start=0, end=1)
        return ctx.op("Expand", at, ctx.op("Concat", batch, ctx.ints(1), axis=0))

    return ctx.shared("places behind the first token", make)


def _at(ctx: Lowering, x: ir.Value) -> ir.Value:
    """0, 1, … of the tokens of x, int64 (1, tokens)."""

    def make() -> ir.Value:
        zero, one = (ctx.scalar(number, INT64) for number in (0, 1))
        return ctx.op("Unsqueeze", ctx.op("Range", zero, ctx.op("Squeeze", _tokens(ctx, x)), one), ctx.ints(0))

    return ctx.shared("places", make)


def _is_global(ctx: Lowering, op: ops.LocalGlobalAttention, x: ir.Value, padding: ir.Value | None) -> ir.Value:
    """Which tokens are global, (batch, tokens) bool."""

    def make() -> ir.Value:
        index = _index(ctx, x, padding)
        behind = ctx.op("GreaterOrEqual", index, ctx.scalar(0, INT64), dtype=BOOL)
        return ctx.op("And", behind, ctx.op("Less", index, ctx.scalar(op.num_global, INT64), dtype=BOOL))

    return ctx.shared(("global tokens", op.num_global), make)


def _places(ctx: Lowering, x: ir.Value, padding: ir.Value | None, count: int) -> ir.Value:
    """Where the first ``count`` tokens of each row stand, int64 (batch, count)."""

    def make() -> ir.Value:
        steps = ctx.constant(np.arange(count)[None])
        if padding is None:
            batch = ctx.op("Shape", x, dtype=INT64, start=0, end=1)
            return ctx.op("Expand", steps, ctx.op("Concat", batch, ctx.ints(1), axis=0))
        # The last place off the row of places, which lies on the device, as a number of tokens does not.
        last = ctx.op("ReduceMax", _at(ctx, x), keepdims=1)
        return ctx.op("Min", ctx.op("Add", end_token(ctx, padding, first=True), steps), last)

    return ctx.shared(("first places", count), make)


def _global_valid(ctx: Lowering, op: ops.LocalGlobalAttention, padding: ir.Value) -> ir.Value:
    """Which of the first places hold a token, (batch, G) bool: a short row has fewer."""

    def make() -> ir.Value:
        count = ctx.op("ReduceSum", padding, ctx.ints(1), keepdims=1)
        return ctx.op("Less", ctx.constant(np.arange(op.num_global)[None]), count, dtype=BOOL)

    return ctx.shared(("global tokens there are", op.num_global), make)


def _rows(ctx: Lowering, x: ir.Value, places: ir.Value) -> ir.Value:
    """The rows of x (batch, tokens, width) at places (batch, count)."""
    return ctx.op("GatherND", x, ctx.op("Unsqueeze", places, ctx.ints(2)), batch_dims=1)
