"""How new rows come into a cache: behind the old ones, or round a ring.

Whatever writes a cache is the only reader of what it held, or comes after it, so that past and present may be one buffer.
"""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import attention as ops
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.step import capacity_rows, causal_mask, past_column, ring_source

Rows = ops.Attention | ops.LatentAttention


def to_heads(ctx: Lowering, x: ir.Value, heads: int, head_dim: int) -> ir.Value:
    """(batch, seq, heads x head_dim) -> (batch, heads, seq, head_dim)."""
    return ctx.op("Transpose", ctx.op("Reshape", x, ctx.ints(0, 0, heads, head_dim)), perm=[0, 2, 1, 3])


def from_heads(ctx: Lowering, x: ir.Value, width: int) -> ir.Value:
    """(batch, heads, seq, head_dim) -> (batch, seq, width)."""
    return ctx.op("Reshape", ctx.op("Transpose", x, perm=[0, 2, 1, 3]), ctx.ints(0, 0, width))


def append(ctx: Lowering, node: Node, role: str, rows: ir.Value) -> ir.Value:
    """The cache with new rows (batch, K, seq, width) at each row's own length; padding is written and overwritten later."""
    past = ctx.past(node, role)
    return ctx.present(node, role, ctx.op("TensorScatter", past, rows, ctx.inputs["past_length"], axis=2))


def used_part(ctx: Lowering, rows: ir.Value) -> ir.Value:
    """Those of the rows (…, …, capacity, …) that any sequence has in use."""
    return ctx.op("Slice", rows, ctx.ints(0), ctx.inputs["max_length"], ctx.ints(2))


def mask_of_one(ctx: Lowering, cache: ir.Value) -> ir.Value:
    """Which of the used rows of a full cache one new token a sequence sees, as a mask (batch, 1, 1, T)."""

    def make() -> ir.Value:
        return causal_mask(ctx, used_part(ctx, capacity_rows(ctx, cache)), past_column(ctx))

    return ctx.shared("mask of one over the used rows", make)


def joined(ctx: Lowering, node: Node, role: str, new: ir.Value) -> ir.Value:
    """[ring before the call | new rows], (batch, K, rows + seq, width)."""
    return ctx.op("Concat", ctx.past(node, role), new, axis=2)


def turned(ctx: Lowering, op: Rows, heads: int, both: ir.Value) -> ir.Value:
    """What the ring holds after the call, picked from [ring before it | new rows]."""
    rows = op.ring_rows()
    assert rows is not None
    return ctx.op("GatherND", both, ring_source(ctx, rows, op.sink_tokens, heads), batch_dims=2)


def replaced(ctx: Lowering, node: Node, op: Rows, role: str, new: ir.Value) -> ir.Value:
    """The ring with the one new row in place of the one that just left the window, which the new token does not see."""
    return ctx.op("TensorScatter", ctx.past(node, role), new, ring_slot(ctx, op), axis=2)


def ring_slot(ctx: Lowering, op: Rows) -> ir.Value:
    """Row of a ring that the next token goes to, int64 (batch,)."""
    rows = op.ring_rows()
    assert rows is not None
    assert op.sink_tokens == 0, "the rows of first tokens take no turns"

    def make() -> ir.Value:
        slot = ctx.op("Mod", past_column(ctx), ctx.scalar(rows, ir.DataType.INT64))
        return ctx.op("Squeeze", slot, ctx.ints(1))

    return ctx.shared(("ring slot", rows), make)


def ring_text(op: Rows) -> str:
    """The ring of a layer in words."""
    rows = op.ring_rows()
    return f"{op.sink_tokens} first tokens and a ring of {op.window} rows" if op.sink_tokens else f"ring of {rows} rows"
