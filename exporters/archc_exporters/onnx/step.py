"""Values of one call that many ops read: positions, valid tokens, masks. Each is made once, when it is first asked for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.errors import GraphError
from archc.graph.graph import CAPACITY_MULTIPLE
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.prune import LAST_TOKEN
from archc_exporters.onnx.states import ENCODER, ENCODER_MASK


def new_tokens(ctx: Lowering) -> ir.Value:
    """Padded number of new tokens, int64 [1]. From a shape, so it lives on the host and copies nothing."""
    return ctx.shared("new tokens", lambda: ctx.op("Shape", tokens(ctx), dtype=ir.DataType.INT64, start=1, end=2))


def tokens(ctx: Lowering) -> ir.Value:
    """Something with an entry for each token of the call, (batch, seq) int64: the ids, or the places of what is no text.

    Raises:
        GraphError: nothing has said how many there are.
    """
    ids = next((ctx.inputs[name] for name in ("input_ids", f"{ENCODER}input_ids") if name in ctx.inputs), None)
    found = ctx.places if ids is None else ids
    if found is None:
        raise GraphError(f"{ctx.path}: how many tokens a call has is not known here; no op has counted them")
    return found


def padding(ctx: Lowering) -> ir.Value | None:
    """1 for a token and 0 for padding, int64 (batch, seq), of a file that sees all tokens at once."""
    names = ("attention_mask", ENCODER_MASK) if ctx.is_whole else ()
    return next((ctx.inputs[name] for name in names if name in ctx.inputs), None)


def is_many(ctx: Lowering) -> ir.Value:
    """Whether there is more than one new token, a bool of rank 0."""

    def make() -> ir.Value:
        more = ctx.op("Greater", new_tokens(ctx), ctx.ints(1), dtype=ir.DataType.BOOL)
        return ctx.op("Squeeze", more, ctx.ints(0))

    return ctx.shared("is many", make)


def token_index(ctx: Lowering) -> ir.Value:
    """0, 1, … of the new tokens, int64 (1, seq)."""

    def make() -> ir.Value:
        count = ctx.op("Squeeze", new_tokens(ctx), ctx.ints(0))
        zero, one = (ctx.scalar(number, ir.DataType.INT64) for number in (0, 1))
        return ctx.op("Unsqueeze", ctx.op("Range", zero, count, one), ctx.ints(0))

    return ctx.shared("token index", make)


def past_column(ctx: Lowering) -> ir.Value:
    """Tokens that each row holds before the call, int64 (batch, 1)."""
    return ctx.shared("past column", lambda: ctx.op("Unsqueeze", ctx.inputs["past_length"], ctx.ints(1)))


def seq_column(ctx: Lowering) -> ir.Value:
    """Valid new tokens of each row, int64 (batch, 1)."""
    return ctx.shared("seq column", lambda: ctx.op("Unsqueeze", ctx.inputs["seq_length"], ctx.ints(1)))


def last_token(ctx: Lowering, x: ir.Value) -> ir.Value:
    """(batch, seq, width) -> each row's last valid token, (batch, 1, width)."""

    def make() -> ir.Value:
        last = ctx.op("Sub", seq_column(ctx), ctx.scalar(1, ir.DataType.INT64))
        return ctx.op("Unsqueeze", last, ctx.ints(2))

    y = ctx.op("GatherND", x, ctx.shared("last token", make), batch_dims=1)
    node = y.producer()
    assert node is not None
    node.meta[LAST_TOKEN] = True
    return y


def last_key(ctx: Lowering) -> ir.Value:
    """Row of each sequence's last key after the call, padding counted on, int32 (batch,): GroupQueryAttention's lengths."""

    def make() -> ir.Value:
        # With true lengths a kernel whose rolling window can't take a ragged prompt says so.
        length = ctx.inputs["held_length" if ctx.target.io == "genai" else "kv_length"]
        last = ctx.op("Sub", length, ctx.scalar(1, ir.DataType.INT64))
        return ctx.cast(last, ir.DataType.INT32)

    return ctx.shared("last key", make)


def total_length(ctx: Lowering) -> ir.Value:
    """``max_length`` as an int32 of rank 0, on the host where GroupQueryAttention reads it.

    On CUDA a Cast would take it to the device and need a copy back. ConstantOfShape reads it on the host, and the shape of
    what it makes, a byte a token, lives there too.
    """

    def make() -> ir.Value:
        longest = ctx.inputs["max_length"]
        if ctx.target.provider == "cuda" and ctx.target.io == "archc":
            filled = ctx.filled(longest, 0, ir.DataType.BOOL)
            longest = ctx.op("Shape", filled, dtype=ir.DataType.INT64)
        return ctx.op("Squeeze", ctx.cast(longest, ir.DataType.INT32), ctx.ints(0))

    return ctx.shared("total length", make)


def end_token(ctx: Lowering, padding: ir.Value, *, first: bool) -> ir.Value:
    """Where the first or the last token of each row stands that is no padding, int64 (batch, 1).

    Counted, because CUDA has no ArgMax of integers, and that of floats wants cuDNN. A row of nothing but padding gives 0.
    """

    def make() -> ir.Value:
        one = ctx.scalar(1, ir.DataType.INT64)
        so_far = ctx.op("CumSum", padding, one)
        whole = ctx.op("ReduceSum", padding, ctx.ints(1), keepdims=1)
        wanted = ctx.op("Min", whole, one) if first else whole
        before = ctx.cast(ctx.op("Less", so_far, wanted, dtype=ir.DataType.BOOL), ir.DataType.INT64)
        return ctx.op("ReduceSum", before, ctx.ints(1), keepdims=1)

    return ctx.shared(("end token", padding.name, first), make)


def positions(ctx: Lowering) -> ir.Value:
    """Position of each new token, int64 (batch, seq). Behind a past padding counts on; where all is seen at once it does not."""

    def make() -> ir.Value:
        if not ctx.is_whole:
            return ctx.op("Add", past_column(ctx), token_index(ctx))
        mask = padding(ctx)
        if mask is None:
            return tokens(ctx)
        zero, one = (ctx.scalar(number, ir.DataType.INT64) for number in (0, 1))
        count = ctx.op("CumSum", mask, ctx.scalar(1, ir.DataType.INT64))
        return ctx.op("Max", ctx.op("Sub", count, one), zero)

    return ctx.shared("positions", make)


def valid_tokens(ctx: Lowering) -> ir.Value:
    """1 for a token, 0 for padding, float32 (batch, seq, 1)."""

    def make() -> ir.Value:
        inside = ctx.op("Less", token_index(ctx), seq_column(ctx), dtype=ir.DataType.BOOL)
        return ctx.op("Unsqueeze", ctx.cast(inside, ir.DataType.FLOAT), ctx.ints(2))

    return ctx.shared("valid tokens", make)


def ring_positions(ctx: Lowering, end: ir.Value, rows: int, sink_tokens: int = 0) -> ir.Value:
    """Position of the newest token before ``end`` (batch, 1) in each row of a ring, (batch, rows); negative where none is.

    The first ``sink_tokens`` rows hold those positions for good; the others later ones, modulo their number.
    """
    one, size = (ctx.scalar(number, ir.DataType.INT64) for number in (1, rows - sink_tokens))
    newest = ctx.op("Sub", end, one)
    slots = ctx.constant(np.arange(rows)[None])
    # Mod takes the sign of the divisor, so slots that no token reached come out negative.
    held = ctx.op("Sub", newest, ctx.op("Mod", ctx.op("Sub", newest, slots), size))
    if sink_tokens == 0:
        return held
    is_sink = np.arange(rows)[None] < sink_tokens
    position = ctx.op("Where", ctx.constant(is_sink), slots, held, dtype=ir.DataType.INT64)
    # A sink row is empty until its token came, a row of the ring as long as a sink token is the last that would fall there.
    first = ctx.constant(np.where(is_sink, 0, sink_tokens))
    later = ctx.op("GreaterOrEqual", position, first, dtype=ir.DataType.BOOL)
    filled = ctx.op("And", later, ctx.op("LessOrEqual", position, newest, dtype=ir.DataType.BOOL))
    return ctx.op("Where", filled, position, ctx.scalar(-1, ir.DataType.INT64), dtype=ir.DataType.INT64)


def ring_mask(ctx: Lowering, *, window: int | None, chunk: int | None = None, sink_tokens: int = 0) -> ir.Value:
    """Which rows of [ring | new tokens] a token sees, as 0 or a large negative number, (batch, 1, seq, rows + seq)."""
    return ctx.shared(
        ("ring mask", window, chunk, sink_tokens),
        lambda: additive(ctx, ring_seen(ctx, window=window, chunk=chunk, sink_tokens=sink_tokens)[0]),
    )


def ring_seen(
    ctx: Lowering, *, window: int | None, chunk: int | None, sink_tokens: int = 0
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(which rows of [ring | new tokens] a token sees, (batch, seq, rows + seq) bool; positions of rows, and of tokens)."""

    def make() -> tuple[ir.Value, ir.Value, ir.Value]:
        reach = window or chunk
        assert reach is not None
        here = positions(ctx)
        before = ring_before(ctx, reach + sink_tokens, sink_tokens)
        key = ctx.op("Unsqueeze", ctx.op("Concat", before, here, axis=1), ctx.ints(1))
        query = ctx.op("Unsqueeze", here, ctx.ints(2))
        seen = ctx.op("LessOrEqual", key, query, dtype=ir.DataType.BOOL)
        zero, size = (ctx.scalar(number, ir.DataType.INT64) for number in (0, reach))
        if window is not None:
            near = ctx.op("Greater", key, ctx.op("Sub", query, size), dtype=ir.DataType.BOOL)
            if sink_tokens:
                first = ctx.op("Less", key, ctx.scalar(sink_tokens, ir.DataType.INT64), dtype=ir.DataType.BOOL)
                near = ctx.op("Or", near, first)
            filled = ctx.op("GreaterOrEqual", key, zero, dtype=ir.DataType.BOOL)
            seen = ctx.op("And", ctx.op("And", seen, near), filled)
        else:
            # The start of a chunk is never negative, so empty slots fall out by themselves.
            start = ctx.op("Mul", ctx.op("Div", query, size), size)
            seen = ctx.op("And", seen, ctx.op("GreaterOrEqual", key, start, dtype=ir.DataType.BOOL))
        return seen, key, query

    return ctx.shared(("ring seen", window, chunk, sink_tokens), make)


def ring_before(ctx: Lowering, rows: int, sink_tokens: int = 0) -> ir.Value:
    """Position that each row of a ring holds before the call, (batch, rows); negative where it holds none."""
    key = ("ring before", rows, sink_tokens)
    return ctx.shared(key, lambda: ring_positions(ctx, past_column(ctx), rows, sink_tokens))


def ring_source(ctx: Lowering, rows: int, sink_tokens: int, heads: int) -> ir.Value:
    """Where each row of a ring comes from in [ring before the call | new rows], int64 (batch, heads, rows, 1)."""

    def make() -> ir.Value:
        end = ctx.op("Add", past_column(ctx), seq_column(ctx))
        new = ctx.op("Sub", ring_positions(ctx, end, rows, sink_tokens), past_column(ctx))
        is_new = ctx.op("GreaterOrEqual", new, ctx.scalar(0, ir.DataType.INT64), dtype=ir.DataType.BOOL)
        behind = ctx.op("Add", new, ctx.scalar(rows, ir.DataType.INT64))
        place = ctx.op("Where", is_new, behind, ctx.constant(np.arange(rows)[None]), dtype=ir.DataType.INT64)
        place = ctx.op("Unsqueeze", place, ctx.ints(1, 3))
        return place if heads == 1 else ctx.op("Expand", place, ctx.ints(1, heads, 1, 1))

    return ctx.shared(("ring source", rows, sink_tokens, heads), make)


def ring_seen_by_one(ctx: Lowering, rows: int, chunk: int | None) -> tuple[ir.Value, ir.Value]:
    """(which rows of a ring one token sees that is in it already, (batch, 1, rows) bool; their positions).

    A ring as long as the window holds what its newest token sees; of one as long as a chunk the earlier chunk is left out.
    """

    def make() -> tuple[ir.Value, ir.Value]:
        end = ctx.op("Add", past_column(ctx), ctx.scalar(1, ir.DataType.INT64))
        held = ring_positions(ctx, end, rows)
        first = ctx.scalar(0, ir.DataType.INT64)
        if chunk is not None:
            size = ctx.scalar(chunk, ir.DataType.INT64)
            first = ctx.op("Mul", ctx.op("Div", past_column(ctx), size), size)
        seen = ctx.op("GreaterOrEqual", held, first, dtype=ir.DataType.BOOL)
        return ctx.op("Unsqueeze", seen, ctx.ints(1)), ctx.op("Unsqueeze", held, ctx.ints(1))

    return ctx.shared(("ring seen by one", rows, chunk), make)


def ring_filled(ctx: Lowering, rows: int, chunk: int | None = None) -> ir.Value:
    """Which rows of a ring its newest token sees, as a mask (batch, 1, 1, rows)."""
    return ctx.shared(("ring filled", rows, chunk), lambda: additive(ctx, ring_seen_by_one(ctx, rows, chunk)[0]))


def capacity_rows(ctx: Lowering, cache: ir.Value) -> ir.Value:
    """0, 1, … of a full cache, int64 (1, 1, capacity)."""

    def make() -> ir.Value:
        zero, one = (ctx.scalar(number, ir.DataType.INT64) for number in (0, 1))
        rows = ctx.op("Squeeze", ctx.op("Shape", cache, dtype=ir.DataType.INT64, start=2, end=3), ctx.ints(0))
        return ctx.op("Unsqueeze", ctx.op("Range", zero, rows, one), ctx.ints(0, 1))

    return ctx.shared("capacity rows", make)


def used_rows(ctx: Lowering, rows: ir.Value) -> ir.Value:
    """How many of a full cache's ``rows`` (1, 1, T) are in use, rounded up to the multiple that its capacity is too, int64 [1].

    Read off a shape, because what is computed from ``max_length`` itself would be copied to the GPU and back.
    """

    def make() -> ir.Value:
        used = ctx.op("Slice", rows, ctx.ints(0), ctx.inputs["max_length"], ctx.ints(2))
        count = ctx.op("Shape", used, dtype=ir.DataType.INT64, start=2, end=3)
        rest, multiple = (ctx.ints(number) for number in (CAPACITY_MULTIPLE - 1, CAPACITY_MULTIPLE))
        whole = ctx.op("Div", ctx.op("Add", count, rest), multiple)
        return ctx.op("Mul", whole, multiple)

    return ctx.shared("used rows", make)


def rows_in_use(ctx: Lowering) -> tuple[ir.Value, ir.Value]:
    """(how many rows of a full cache are in use, rounded up as by ``used_rows``, int64 [1]; 0, 1, … of them, (1, 1, T)).

    Like ``used_rows`` where no cache is at hand, because what needs it is made for many of them.
    """

    def make() -> tuple[ir.Value, ir.Value]:
        used = ctx.filled(ctx.inputs["max_length"], 0, ir.DataType.BOOL)
        count = ctx.op("Shape", used, dtype=ir.DataType.INT64)
        rest, multiple = (ctx.ints(number) for number in (CAPACITY_MULTIPLE - 1, CAPACITY_MULTIPLE))
        end = ctx.op("Mul", ctx.op("Div", ctx.op("Add", count, rest), multiple), multiple)
        zero, one = (ctx.scalar(number, ir.DataType.INT64) for number in (0, 1))
        rows = ctx.op("Range", zero, ctx.op("Squeeze", end, ctx.ints(0)), one)
        return end, ctx.op("Unsqueeze", rows, ctx.ints(0, 1))

    return ctx.shared("rows in use", make)


def causal_mask(ctx: Lowering, rows: ir.Value, at: ir.Value) -> ir.Value:
    """Which of the rows (1, 1, T) the tokens at positions (batch, seq) see, (batch, 1, seq, T)."""
    seen = ctx.op("LessOrEqual", rows, ctx.op("Unsqueeze", at, ctx.ints(2)), dtype=ir.DataType.BOOL)
    return additive(ctx, seen)


def additive(ctx: Lowering, seen: ir.Value) -> ir.Value:
    """(batch, seq, T) bool -> (batch, 1, seq, T) in the model's dtype: 0 where seen, the lowest useful number elsewhere."""
    mask = ctx.op("Where", seen, ctx.scalar(0.0), ctx.scalar(lowest(ctx)), dtype=ctx.dtype)
    return ctx.op("Unsqueeze", mask, ctx.ints(1))


def lowest(ctx: Lowering) -> float:
    """A mask entry that leaves nothing of a key and is still finite in the model's dtype."""
    return -65504.0 if ctx.dtype == ir.DataType.FLOAT16 else -1e9
