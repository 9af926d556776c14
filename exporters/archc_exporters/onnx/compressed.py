"""Compressed attention: entries of new windows in every call, and a window of keys with the entries before a token.

Legend of shapes: N heads, H width, W rows of the ring, R entries in use, C chosen ones, m tokens of a window, n new windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import compressed as ops
from archc.ops.attention import Attention
from archc_exporters.onnx.caches import from_heads, joined, replaced, to_heads, turned
from archc_exporters.onnx.choice import new_block_rows, parts, write_blocks
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.single import attend_one
from archc_exporters.onnx.sinks import attend_by_channel
from archc_exporters.onnx.sparse_latent import best_keys, index_scores, mask_of_best
from archc_exporters.onnx.step import (
    additive,
    is_many,
    lowest,
    new_tokens,
    past_column,
    positions,
    ring_filled,
    ring_mask,
    rows_in_use,
    seq_column,
)
from archc_exporters.onnx.weights import Array

FLOAT, INT64, BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
ENTRIES = "archc.entries"
"""Mark on entries in use: their whole cache (batch, 1, capacity, width), so that few of them can be read where they lie."""
NEVER = -3e38
"""A gate that leaves nothing of its token, finite in float32."""


def compressed_entries(ctx: Lowering, node: Node, rows: ir.Value, gates: ir.Value) -> ir.Value:
    """Entries in use (batch, R, H); those of windows that are not complete are overwritten until they are."""
    op = node.op
    assert isinstance(op, ops.CompressedEntries)
    ctx.note("entries of windows of new tokens in every call, overwritten until they are complete; softmax in float32")
    sizes = ctx.ints(*(op.dim,) * op.series)
    by_series = [
        ctx.ops("Split", x, sizes, dtypes=(None,) * op.series, axis=-1) if op.overlap else [x] for x in (rows, gates)
    ]
    roles = ("overlap", "pending") if op.overlap else ("pending",)
    first, at = new_block_rows(ctx, stride=op.ratio, block=op.ratio, held=op.ratio - 1, heads=1)
    number = _numbers(ctx, op, first)
    windows: list[tuple[ir.Value, ir.Value]] = []
    for series, (role, row, gate) in enumerate(zip(roles, *by_series, strict=True)):
        new = ctx.op("Unsqueeze", ctx.op("Concat", row, gate, axis=-1), ctx.ints(1))
        behind = ctx.op("Concat", ctx.past(node, role), new, axis=2)
        kept = node.states[role].used[2]
        assert isinstance(kept, int)
        ctx.present(node, role, ctx.op("GatherND", behind, _kept_rows(ctx, kept), batch_dims=2))
        windows.append(_window(ctx, node, op, ctx.op("GatherND", behind, at, batch_dims=2), series))
    if op.overlap:
        windows[0] = _nothing_before(ctx, op, number, windows[0])
    row, gate = (ctx.op("Concat", *each, axis=2) if op.overlap else each[0] for each in zip(*windows, strict=True))
    mixed = ctx.op("ReduceSum", ctx.op("Mul", row, ctx.op("Softmax", gate, axis=2)), ctx.ints(2), keepdims=0)
    weight = ctx.weight(node, "norm_weight", tag="float", dtype=FLOAT)
    entries = ctx.cast(ctx.op("RMSNormalization", mixed, weight, axis=-1, epsilon=op.eps), ctx.dtype)
    entries = ctx.op("Unsqueeze", _turned(ctx, op, entries, number), ctx.ints(1))
    cache = ctx.present(node, "entry", write_blocks(ctx, ctx.past(node, "entry"), entries, first))
    found = ctx.op("Squeeze", _used(ctx, cache, op.ratio), ctx.ints(1))
    found.meta[ENTRIES] = cache
    return found


def _numbers(ctx: Lowering, op: ops.CompressedEntries, first: ir.Value) -> ir.Value:
    """Numbers of the windows that new tokens may belong to, int64 (batch, n)."""

    def make() -> ir.Value:
        count = ctx.op("Squeeze", parts(ctx, new_tokens(ctx), op.ratio), ctx.ints(0))
        return ctx.op("Add", first, ctx.op("Range", ctx.scalar(0, INT64), count, ctx.scalar(1, INT64)))

    return ctx.shared(("numbers of windows", op.ratio), make)


def _kept_rows(ctx: Lowering, count: int) -> ir.Value:
    """The last rows of [``count`` rows | new tokens] up to a sequence's own last token, int64 (batch, 1, count, 1)."""

    def make() -> ir.Value:
        return ctx.op("Unsqueeze", ctx.op("Add", seq_column(ctx), ctx.constant(np.arange(count))), ctx.ints(1, 3))

    return ctx.shared(("pending rows", count, 1), make)


def _window(
    ctx: Lowering, node: Node, op: ops.CompressedEntries, taken: ir.Value, series: int
) -> tuple[ir.Value, ir.Value]:
    """(rows, gates with their bias), float32 (batch, n, m, H), of rows and gates side by side (batch, 1, n m, 2 H)."""
    both = ctx.cast(ctx.op("Reshape", taken, ctx.ints(0, -1, op.ratio, 2 * op.dim)), FLOAT)
    row, gate = ctx.ops("Split", both, ctx.ints(op.dim, op.dim), dtypes=(None, None), axis=-1)
    start = series * op.dim

    def own(bias: Array) -> Array:
        return bias[:, start : start + op.dim]

    bias = ctx.weight(node, "position_bias", tag="ab"[series], shape=(op.ratio, op.dim), transform=own)
    return row, ctx.op("Add", gate, bias)


def _nothing_before(
    ctx: Lowering, op: ops.CompressedEntries, number: ir.Value, window: tuple[ir.Value, ir.Value]
) -> tuple[ir.Value, ir.Value]:
    """The series of the window before: none stands before the first, whatever a used cache holds there."""

    def make() -> ir.Value:
        first = ctx.op("Equal", number, ctx.scalar(0, INT64), dtype=BOOL)
        return ctx.op("Unsqueeze", first, ctx.ints(2, 3))

    nothing = ctx.shared(("first window", op.ratio), make)
    row, gate = window
    return (
        ctx.op("Where", nothing, ctx.scalar(0.0, FLOAT), row, dtype=FLOAT),
        ctx.op("Where", nothing, ctx.scalar(NEVER, FLOAT), gate, dtype=FLOAT),
    )


def _turned(ctx: Lowering, op: ops.CompressedEntries, entries: ir.Value, number: ir.Value) -> ir.Value:
    """Entries (batch, n, H) whose last channels turn by the position of their window's first token."""
    if not op.frequencies:
        return entries
    turned = 2 * len(op.frequencies)
    frequencies = np.array(op.frequencies) * op.ratio

    def make() -> tuple[ir.Value, ir.Value]:
        shape = (-(-ctx.table_rows // op.ratio), len(op.frequencies))

        def angles(start: int, stop: int) -> Array:
            return np.arange(start, stop, dtype=np.float64)[:, None] * frequencies

        cos = ctx.table(f"entries_{op.ratio}.cos", shape, lambda start, stop: np.cos(angles(start, stop)) * op.factor)
        sin = ctx.table(f"entries_{op.ratio}.sin", shape, lambda start, stop: np.sin(angles(start, stop)) * op.factor)
        return cos, sin

    cos, sin = ctx.shared(("rope of entries", op.ratio, op.frequencies, op.factor), make)
    before, part = entries, entries
    if turned < op.dim:
        before, part = ctx.ops("Split", entries, ctx.ints(op.dim - turned, turned), dtypes=(None, None), axis=-1)
    part = ctx.op("RotaryEmbedding", part, cos, sin, number, num_heads=1, interleaved=int(op.interleaved))
    return part if turned == op.dim else ctx.op("Concat", before, part, axis=-1)


def _used(ctx: Lowering, cache: ir.Value, ratio: int) -> ir.Value:
    """Those of the rows of a cache that have an entry in any sequence, and some behind them."""
    return ctx.op("Slice", cache, ctx.ints(0), _count(ctx, ratio), ctx.ints(2))


def _count(ctx: Lowering, ratio: int) -> ir.Value:
    """Entries that the rows in use touch, int64 [1], on the host."""
    return ctx.shared(("entries in use", ratio), lambda: parts(ctx, rows_in_use(ctx)[0], ratio))


def _last_tokens(ctx: Lowering, ratio: int) -> ir.Value:
    """Position of each entry's last token, int64 (1, 1, R)."""

    def make() -> ir.Value:
        zero, one, size, last = (ctx.scalar(number, INT64) for number in (0, 1, ratio, ratio - 1))
        number = ctx.op("Range", zero, ctx.op("Squeeze", _count(ctx, ratio), ctx.ints(0)), one)
        return ctx.op("Unsqueeze", ctx.op("Add", ctx.op("Mul", number, size), last), ctx.ints(0, 1))

    return ctx.shared(("last tokens of entries", ratio), make)


def compressed_attention(ctx: Lowering, node: Node, q: ir.Value, kv: ir.Value, *given: ir.Value) -> ir.Value:
    """Many new tokens read [ring | new tokens | entries] under a mask; one takes its place in the ring, and gathers."""
    op = node.op
    assert isinstance(op, ops.CompressedAttention)
    ring = Attention(
        num_heads=op.num_heads,
        num_kv_heads=1,
        key_dim=op.head_dim,
        value_dim=op.head_dim,
        scale=op.scale,
        window=op.window,
        sinks=op.sinks,
    )
    entries = "" if op.ratio is None else " | entries"
    few = f"{op.topk} entries gathered by TopK of float32 scores, " if op.topk is not None else ""
    ctx.note(
        f"If(seq > 1): Attention over [ring of {op.window} rows | new tokens{entries}] under a float mask; else TensorScatter, "
        f"{few}and plain products over [ring{entries}]"
    )
    q = to_heads(ctx, q, op.num_heads, op.head_dim)
    new = ctx.op("Unsqueeze", kv, ctx.ints(1))

    def many() -> tuple[ir.Value, ir.Value]:
        both = joined(ctx, node, "key", new)
        mask, keys = ring_mask(ctx, window=op.window), both
        if op.ratio is not None:
            keys, mask = _with_entries(ctx, op, both, mask, given, many=True)
        numbers: dict[str, Any] = {"scale": op.scale}
        is_shared = op.topk is None
        if op.sinks:
            o = attend_by_channel(ctx, node, ring, (q, keys, keys), mask=mask, numbers=numbers, is_shared=is_shared)
        else:
            o = ctx.op("Attention", q, keys, keys, mask, **numbers)
        return o, turned(ctx, ring, 1, both)

    def one() -> tuple[ir.Value, ir.Value]:
        held = replaced(ctx, node, ring, "key", new)
        mask, keys = ring_filled(ctx, op.window), held
        if op.ratio is not None:
            keys, mask = _with_entries(ctx, op, held, mask, given, many=False)
        return attend_one(ctx, node, ring, (q, keys, keys), mask), held

    o, key = ctx.choose(is_many(ctx), many, one, (ctx.dtype, ctx.dtype))
    ctx.present(node, "key", key)
    return from_heads(ctx, o, op.num_heads * op.head_dim)


def _with_entries(
    ctx: Lowering, op: ops.CompressedAttention, keys: ir.Value, mask: ir.Value, given: Sequence[ir.Value], *, many: bool
) -> tuple[ir.Value, ir.Value]:
    """(keys (batch, 1, T, H) and the entries behind them; the mask (batch, 1, seq, T) with theirs)."""
    assert op.ratio is not None
    cache, last = _cache(ctx, given[0]), _last_tokens(ctx, op.ratio)
    at = positions(ctx) if many else past_column(ctx)
    if op.topk is None:

        def make() -> ir.Value:
            seen = ctx.op("LessOrEqual", last, ctx.op("Unsqueeze", at, ctx.ints(2)), dtype=BOOL)
            return ctx.op("Concat", mask, additive(ctx, seen), axis=-1)

        mask = ctx.shared(("mask of entries", op.window, op.ratio, many), make)
        return ctx.op("Concat", keys, _used(ctx, cache, op.ratio), axis=2), mask
    index_q, weights, index_entries = given[1:]
    scores = index_scores(ctx, op, index_q, weights, _used(ctx, _cache(ctx, index_entries), op.ratio))
    best, places = best_keys(ctx, op.topk, scores, last, at)
    own = mask_of_best(ctx, best)
    if many:
        closed = ctx.filled(ctx.op("Shape", scores, dtype=INT64), lowest(ctx), ctx.dtype)
        own = ctx.op("ScatterElements", closed, places, own, axis=-1)
        own = ctx.op("Reshape", own, ctx.ints(0, 1, -1, 0))
        taken = _used(ctx, cache, op.ratio)
    else:
        taken = ctx.op("GatherND", cache, ctx.op("Reshape", places, ctx.ints(0, 1, -1, 1)), batch_dims=2)
    return ctx.op("Concat", keys, taken, axis=2), ctx.op("Concat", mask, own, axis=-1)


def _cache(ctx: Lowering, entries: ir.Value) -> ir.Value:
    """Entries as rows of a cache (batch, 1, R or capacity, H)."""
    known = entries.meta.get(ENTRIES)
    return known if isinstance(known, ir.Value) else ctx.op("Unsqueeze", entries, ctx.ints(1))
