"""Softmax attention on a tape: what ``attend`` of the torch leaves keeps for backward."""

from __future__ import annotations

from archc.ir.size import Dim
from archc.ir.tape import Held, Tape


def to_heads(tape: Tape, x: Held, head_dim: int) -> Held:
    """(batch, seq, heads x head_dim) as (batch, heads, seq, head_dim), the same memory."""
    batch, seq = x.shape[:2]
    return tape.view(x, (batch, x.width // head_dim, seq, head_dim))


def joined_heads(tape: Tape, o: Held, *, is_view: bool) -> Held:
    """(batch, heads, seq, head_dim) as (batch, seq, heads x head_dim): the fused kernels write it that way, others are copied."""
    batch, heads, seq, width = o.shape
    assert isinstance(heads, int)
    assert isinstance(width, int)
    shape = (batch, seq, heads * width)
    return tape.view(o, shape) if is_view else tape.copy(o, shape)


def attend(
    tape: Tape,
    q: Held,
    k: Held,
    v: Held,
    *,
    mask: Held | None = None,
    causal: bool = False,
    sinks: Held | None = None,
    soft_cap: float | None = None,
) -> Held:
    """q (batch, heads, seq, width) over its rows -> (batch, seq, heads x value width), by torch's fused kernel or spelled out."""
    if sinks is not None or soft_cap is not None:
        return joined_heads(tape, _spelled(tape, q, k, v, mask, causal, sinks, soft_cap), is_view=False)
    if v.width < q.width:
        o = tape.sdpa(q, k, tape.copy(v, (*v.shape[:-1], q.width)), mask)
        return joined_heads(tape, tape.view(o, (*o.shape[:-1], v.width)), is_view=False)
    return joined_heads(tape, tape.sdpa(q, k, v, mask), is_view=True)


def _spelled(
    tape: Tape,
    q: Held,
    k: Held,
    v: Held,
    mask: Held | None,
    causal: bool,
    sinks: Held | None,
    soft_cap: float | None,
) -> Held:
    batch, heads, seq, _ = q.shape
    rows: Dim = k.shape[2]
    scores = tape.matmul(q, k, (batch, heads, seq, rows))
    scores = tape.scaled(tape.cast(scores, "float32"))
    if soft_cap is not None:
        scores = tape.scaled(tape.of_output(tape.scaled(scores)))
    if causal:
        mask = tape.new((seq, rows), "bool")
    if mask is not None:
        scores = tape.masked_fill(scores, tape.copy(mask)) if mask.dtype == "bool" else tape.add(scores, mask)
    if sinks is None:
        weights = tape.of_output(scores)
    else:
        weights = tape.of_output(tape.cat((scores, sinks), (batch, heads, seq, rows + 1)))
        weights = tape.view(weights, scores.shape)
    return tape.matmul(tape.cast(weights, v.dtype), v, (batch, heads, seq, v.width))
