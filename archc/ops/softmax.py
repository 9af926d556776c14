"""Softmax attention on a tape: what ``attend`` of the torch leaves keeps for backward."""

from __future__ import annotations

from archc.ir.size import Dim
from archc.ir.tape import Held, Tape


def to_heads(tape: Tape, x: Held, head_dim: int) -> Held:
    """(batch, seq, heads x head_dim) as (batch, heads, seq, head_dim), the same memory."""
    batch, seq = x.shape[:2]
    return tape.view(x, (batch, x.width // head_dim, seq, head_dim))


def joined_heads(tape: Tape, o: Held, *, is_view: bool = False) -> Held:
    """(batch, heads, seq, head_dim) as (batch, seq, heads x head_dim): the fused kernels write it that way, others are copied."""
    batch, heads, seq, width = o.shape
    assert isinstance(heads, int)
    assert isinstance(width, int)
    shape = (batch, seq, heads * width)
    is_view = is_view or heads == 1 or (tape.number(seq) == 1 and is_whole(tape, o))
    return tape.view(o, shape) if is_view else tape.copy(o, shape)


def is_whole(tape: Tape, x: Held) -> bool:
    """Whether x is all that lies in its memory, in this call."""
    return tape.number(x.elements) == tape.number(x.storage.elements)


def for_products(tape: Tape, x: Held, shape: tuple[Dim, ...] | None = None) -> Held:
    """Heads of tokens, a view (batch, heads, seq, width) of (batch, seq, heads x width), as ``torch.matmul`` takes them.

    Batch and heads become one dimension there, which copies x unless there is nothing to put together. ``shape``
    (batch, key-value heads, queries of a group x seq, width) puts the heads of a group under each other before.
    """
    batch, heads, seq, _ = x.shape
    shape = x.shape if shape is None else shape
    lies_so = heads == 1 or (tape.number(seq) == 1 and is_whole(tape, x))
    if lies_so or (heads == shape[1] and tape.number(batch) == 1):
        return tape.view(x, shape)
    return tape.copy(x, shape)


def added(tape: Tape, mask: Held, dtype: str) -> Held:
    """A mask of bools as numbers that are added to scores."""
    return tape.new(mask.shape, dtype) if mask.dtype == "bool" else mask


def attend(
    tape: Tape,
    q: Held,
    k: Held,
    v: Held,
    *,
    mask: Held | None = None,
    sinks: Held | None = None,
    soft_cap: float | None = None,
) -> Held:
    """q (batch, heads, seq, width) over its rows -> (batch, seq, heads x value width), by torch's fused kernel or spelled out.

    A causal mask is none here: the kernel knows it, and where it is spelled out nothing keeps it.
    """
    if sinks is not None or soft_cap is not None:
        return joined_heads(tape, attend_spelled(tape, q, k, v, sinks=sinks, soft_cap=soft_cap))
    o = fused(tape, q, k, v, mask)
    if v.width < q.width:
        return joined_heads(tape, tape.view(o, (*o.shape[:-1], v.width)))
    return joined_heads(tape, o, is_view=mask is None or not mask.needs_grad)


def attend_new(tape: Tape, q: Held, k: Held, v: Held, mask: Held | None, *, sliced: bool) -> Held:
    """The same by the fused kernel; ``sliced``: a slice of the new tokens at a time, and outputs are joined."""
    if not sliced:
        return attend(tape, q, k, v, mask=mask)
    o = fused(tape, q, k, v, mask)
    return joined_heads(tape, tape.copy(o, (*o.shape[:-1], v.width)))


def fused(tape: Tape, q: Held, k: Held, v: Held, mask: Held | None = None) -> Held:
    """(batch, heads, seq, the wider of the two widths); values or keys are padded to one width.

    The CPU's kernel takes no mask that wants a gradient, and torch spells the attention out.
    """
    width = max(q.width, v.width)
    q, k, v = (x if x.width == width else tape.copy(x, (*x.shape[:-1], width)) for x in (q, k, v))
    if mask is not None and mask.needs_grad and tape.device == "cpu":
        return _math(tape, q, k, v, mask)
    return tape.sdpa(q, k, v, None if mask is None else added(tape, mask, q.dtype))


def _math(tape: Tape, q: Held, k: Held, v: Held, mask: Held) -> Held:
    """torch's own attention in plain products, in float32 where that is wider; keys and values are repeated for their group."""
    batch, heads, seq, _ = q.shape
    rows, dtype = k.shape[2], q.dtype
    q, k, v = (tape.wide(x) for x in (q, k, v))
    if heads != k.shape[1]:
        k, v = (tape.copy(x, (batch, heads, rows, x.width)) for x in (k, v))
    queries, keys = for_products(tape, tape.scaled(q)), for_products(tape, tape.scaled(k))
    scores = tape.matmul(queries, keys, (batch, heads, seq, rows))
    weights = tape.of_output(tape.add(scores, mask))
    return tape.cast(tape.matmul(weights, for_products(tape, v), (batch, heads, seq, v.width)), dtype)


def attend_spelled(
    tape: Tape, q: Held, k: Held, v: Held, *, sinks: Held | None = None, soft_cap: float | None = None
) -> Held:
    """(batch, heads, seq, value width) in plain products, softmax in float32. Masks are added, which keeps none of them."""
    batch, heads, seq, width = q.shape
    kv_heads, rows = k.shape[1], k.shape[2]
    assert isinstance(heads, int)
    assert isinstance(kv_heads, int)
    under = heads // kv_heads * seq
    queries, keys = for_products(tape, q, (batch, kv_heads, under, width)), for_products(tape, k)
    scores = tape.matmul(queries, keys, (batch, heads, seq, rows))
    scores = tape.scaled(tape.cast(scores, "float32"))
    if soft_cap is not None:
        scores = tape.scaled(tape.of_output(tape.scaled(scores)))
    if sinks is None:
        weights = tape.of_output(scores)
    else:
        sink = tape.cast(sinks, "float32")
        weights = tape.of_output(tape.cat((scores, sink), (batch, heads, seq, rows + 1)))
        weights = tape.view(weights, scores.shape)
    weights = tape.cast(weights, v.dtype)
    return tape.matmul(weights, for_products(tape, v), (batch, heads, seq, v.width))
