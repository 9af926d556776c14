"""Which blocks of keys a token reads: rows of new blocks, the choice by TopK, its mask over rows, its rows for one token.

Counts that become shapes are read off shapes, which live on the host.
Legend of shapes: N heads that choose, J blocks, C chosen ones, T rows in use, R rows of the chosen blocks.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.step import capacity_rows, lowest, new_tokens, past_column, positions, used_rows

INT64, BOOL, FLOAT = ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT
ALWAYS, NEVER = 3e38, -3e38
"""Scores of blocks that every token reads and that lie behind it."""


def parts(ctx: Lowering, count: ir.Value, size: int) -> ir.Value:
    """ceil(count / size) of a number on the host."""
    return ctx.op("Div", ctx.op("Add", count, ctx.ints(size - 1)), ctx.ints(size))


def used_blocks(ctx: Lowering, cache: ir.Value, size: int) -> ir.Value:
    """Blocks of so many tokens that the rows in use touch, int64 [1]; ``cache`` has a row a token."""
    return ctx.shared(("used blocks", size), lambda: parts(ctx, used_rows(ctx, capacity_rows(ctx, cache)), size))


def first_rows(ctx: Lowering, cache: ir.Value, count: ir.Value) -> ir.Value:
    """0, 1, … below a count, int64 (1, 1, count); ``cache`` has a row a token."""
    return ctx.op("Slice", capacity_rows(ctx, cache), ctx.ints(0), count, ctx.ints(2))


def new_block_rows(ctx: Lowering, *, stride: int, block: int, held: int, heads: int) -> tuple[ir.Value, ir.Value]:
    """(number of the first block that is not complete, (batch, 1); rows of the next ones, (batch, heads, count block, 1)).

    Rows are those of [the ``held`` rows before the new tokens | those], or of a full cache where ``held`` is 0. A token that is
    not there yet is read as the first new one: its block is overwritten once it is complete.
    """

    def make() -> tuple[ir.Value, ir.Value]:
        # Blocks overlap by what they are longer than a stride.
        reached = ctx.op("Sub", past_column(ctx), ctx.scalar(block - stride, INT64))
        size, zero = ctx.scalar(stride, INT64), ctx.scalar(0, INT64)
        first = ctx.op("Div", ctx.op("Max", reached, zero), size)
        count = ctx.op("Squeeze", parts(ctx, new_tokens(ctx), stride), ctx.ints(0))
        number = ctx.op("Add", first, ctx.op("Range", zero, count, ctx.scalar(1, INT64)))
        starts = ctx.op("Unsqueeze", ctx.op("Mul", number, size), ctx.ints(2))
        token = ctx.op("Add", starts, ctx.constant(np.arange(block)))
        there = ctx.op(
            "Less", token, _block(ctx, ctx.op("Unsqueeze", ctx.inputs["kv_length"], ctx.ints(1))), dtype=BOOL
        )
        past = _block(ctx, past_column(ctx))
        token = ctx.op("Where", there, token, past, dtype=INT64)
        row = token if held == 0 else ctx.op("Add", ctx.op("Sub", token, past), ctx.scalar(held, INT64))
        row = ctx.op("Unsqueeze", ctx.op("Reshape", row, ctx.ints(0, 1, -1)), ctx.ints(3))
        return first, row if heads == 1 else ctx.op("Expand", row, ctx.ints(1, heads, 1, 1))

    return ctx.shared(("new block rows", stride, block, held, heads), make)


def write_blocks(ctx: Lowering, past: ir.Value, new: ir.Value, first: ir.Value) -> ir.Value:
    """A cache of blocks with rows (batch, K, count, width) from each sequence's own ``first`` (batch, 1) on."""
    return ctx.op("TensorScatter", past, new, ctx.op("Squeeze", first, ctx.ints(1)), axis=2)


def choose(
    ctx: Lowering, score: ir.Value, cache: ir.Value, *, block: int, count: int, initial: int = 0, local: int = 1
) -> ir.Value:
    """The best blocks of float32 scores (batch, N, seq, J), int64 (batch, N, seq, C); ``cache`` has a row a token.

    The first ``initial`` blocks and the last ``local`` ones up to a token's own are always among them.
    """

    def make() -> tuple[ir.Value, ir.Value, ir.Value]:
        number = first_rows(ctx, cache, used_blocks(ctx, cache, block))
        own = ctx.op("Div", ctx.op("Unsqueeze", positions(ctx), ctx.ints(1, 3)), ctx.scalar(block, INT64))
        behind = ctx.op("Greater", number, own, dtype=BOOL)
        fixed = ctx.op("Greater", number, ctx.op("Sub", own, ctx.scalar(local, INT64)), dtype=BOOL)
        if initial:
            fixed = ctx.op("Or", fixed, ctx.op("Less", number, ctx.scalar(initial, INT64), dtype=BOOL))
        most = ctx.op("Shape", ctx.op("Slice", number, ctx.ints(0), ctx.ints(count), ctx.ints(2)), start=2, end=3)
        return behind, fixed, most

    behind, fixed, most = ctx.shared(("fixed blocks", block, count, initial, local), make)
    score = ctx.op("Where", fixed, ctx.scalar(ALWAYS, FLOAT), score, dtype=FLOAT)
    score = ctx.op("Where", behind, ctx.scalar(NEVER, FLOAT), score, dtype=FLOAT)
    return ctx.ops("TopK", score, most, dtypes=(None, INT64), axis=-1, sorted=0)[1]


def rows_mask(ctx: Lowering, chosen: ir.Value, score: ir.Value, cache: ir.Value, block: int) -> ir.Value:
    """0 for rows in use that a token sees, the lowest useful number elsewhere, (batch, N, seq, T) in the model's dtype.

    ``chosen`` are those of ``score`` (batch, N, seq, J). Rows are rounded up to a multiple of 8, because CUDA's
    memory-efficient kernel wants a multiple of 4 under a mask.
    """

    def causal() -> tuple[ir.Value, ir.Value]:
        end = used_rows(ctx, capacity_rows(ctx, cache))
        query = ctx.op("Unsqueeze", positions(ctx), ctx.ints(1, 3))
        return end, ctx.op("LessOrEqual", first_rows(ctx, cache, end), query, dtype=BOOL)

    end, seen = ctx.shared("causal over the used rows", causal)
    # From shapes of what is there: one that is put together inside an If would be copied to the device and back.
    none = ctx.filled(ctx.op("Shape", score, dtype=INT64), 0, BOOL)
    ones = ctx.filled(ctx.op("Shape", chosen, dtype=INT64), 1, BOOL)
    taken = ctx.op("ScatterElements", none, chosen, ones, axis=-1)
    taken = ctx.op("Expand", ctx.op("Unsqueeze", taken, ctx.ints(4)), ctx.ints(1, 1, 1, 1, block))
    taken = ctx.op("Slice", ctx.op("Reshape", taken, ctx.ints(0, 0, 0, -1)), ctx.ints(0), end, ctx.ints(3))
    return _mask(ctx, ctx.op("And", taken, seen))


def rows_of_one(ctx: Lowering, chosen: ir.Value, block: int) -> tuple[ir.Value, ir.Value]:
    """(rows of one token's chosen blocks, int64 (batch, N, R); 0 for those it sees, in the model's dtype (batch, N, 1, R))."""
    first = ctx.op("Mul", ctx.op("Reshape", chosen, ctx.ints(0, 0, -1, 1)), ctx.scalar(block, INT64))
    row = ctx.op("Reshape", ctx.op("Add", first, ctx.constant(np.arange(block))), ctx.ints(0, 0, -1))
    seen = ctx.op("LessOrEqual", row, _block(ctx, past_column(ctx)), dtype=BOOL)
    # A row that is not there is read as the first, which is.
    row = ctx.op("Where", seen, row, ctx.scalar(0, INT64), dtype=INT64)
    return row, ctx.op("Unsqueeze", _mask(ctx, seen), ctx.ints(2))


def _block(ctx: Lowering, column: ir.Value) -> ir.Value:
    """(batch, 1) -> (batch, 1, 1)."""
    return ctx.op("Unsqueeze", column, ctx.ints(2))


def _mask(ctx: Lowering, seen: ir.Value) -> ir.Value:
    return ctx.op("Where", seen, ctx.scalar(0.0), ctx.scalar(lowest(ctx)), dtype=ctx.dtype)
