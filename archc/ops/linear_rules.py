"""Rules of linear attention on a tape: what the operators of their torch leaves, or their one step, keep for backward."""

from __future__ import annotations

from archc.ir.size import Dim, ceil_div
from archc.ir.tape import Held, Tape

SLAB = 512
"""Tokens between two states that the chunked operators keep for their backward (``SLAB`` of both in torch)."""
SCAN_SLAB = 32
"""The same of the selective scan."""


def repeated(tape: Tape, x: Held, group: int) -> Held:
    """Heads (batch, seq, heads, width), each for ``group`` heads of values: a copy of x, or x itself."""
    if group == 1:
        return x
    batch, seq, heads, width = x.shape
    return tape.copy(x, (batch, seq, heads * group, width))


def _no_state(tape: Tape, v: Held) -> Held:
    """The state before the first token, one zero seen as all of them."""
    return tape.new((1,), "float64" if v.dtype == "float64" else "float32")


def by_operator(
    tape: Tape, v: Held, *inputs: Held, state: tuple[Dim, ...], slab: int = SLAB, keeps_state: bool = True
) -> Held:
    """An operator of archc over a text: inputs and the states that slabs begin with are kept; gives values like v."""
    start = _no_state(tape, v)
    keeps = (*inputs, start) if keeps_state else inputs
    out = tape.fresh(inputs, v.shape, dtype=v.dtype, keeps=keeps, axis=v.axis)
    final = tape.new(state, start.dtype, axis=v.axis)
    starts = tape.new((ceil_div(v.shape[1], slab), *state), start.dtype, axis=v.axis)
    if out.needs_grad:
        tape.save(starts)
    for each in (out, final, starts):
        tape.product(each)
    return out


def gated_delta(tape: Tape, q: Held, k: Held, v: Held, decay: Held, beta: Held) -> Held:
    """The gated delta rule over q, k, v (batch, seq, heads, width).

    ``decay`` (batch, seq, heads[, key width]) and ``beta`` (batch, seq, heads).
    """
    batch, _, heads, width = v.shape
    state = (batch, heads, q.width, width)
    if tape.number(v.shape[1]) > 1:
        return by_operator(tape, v, q, k, v, decay, beta, state=state)
    q, k, values, decay, beta = (tape.wide(each) for each in (q, k, v, decay, beta))
    q, decay = tape.scaled(q), tape.of_output(decay)
    forgotten = tape.fresh((decay,), state, keeps=[_no_state(tape, v)])
    read = tape.product(tape.fresh((values, k, forgotten), keeps=[k, forgotten]))
    written = tape.mul(read, beta)
    final = tape.fresh((forgotten, k, written), keeps=[k, written])
    return tape.cast(tape.matmul(q, final, v.shape), v.dtype)


def gated(tape: Tape, q: Held, k: Held, v: Held, decay: Held) -> Held:
    """The plain gated rule over q, k (batch, seq, key heads, width), v (batch, seq, heads, width), decay as above."""
    batch, _, heads, width = v.shape
    assert isinstance(heads, int)
    key_heads = q.shape[2]
    assert isinstance(key_heads, int)
    state = (batch, heads, q.width, width)
    if tape.number(v.shape[1]) > 1:
        return by_operator(tape, v, q, k, v, decay, state=state)
    q, k, values, decay = (tape.wide(each) for each in (q, k, v, decay))
    q, k = (repeated(tape, each, heads // key_heads) for each in (q, k))
    forgotten = tape.fresh((tape.of_output(decay),), state, keeps=[_no_state(tape, v)])
    final = tape.fresh((forgotten, k, values), keeps=[k, values])
    return tape.cast(tape.matmul(tape.scaled(q), final, v.shape), v.dtype)


def selective(tape: Tape, x: Held, dt: Held, rates: Held, b: Held, c: Held) -> Held:
    """The selective scan over x, dt (batch, seq, channels), rates (channels, state), b, c (batch, seq, state)."""
    batch, seq, channels = x.shape
    state = (batch, channels, rates.width)
    if tape.number(seq) > 1:
        return by_operator(tape, x, x, dt, rates, b, c, state=state, slab=SCAN_SLAB, keeps_state=False)
    exponent = tape.fresh((dt, rates), state, keeps=(dt, rates))
    forgotten = tape.fresh((tape.of_output(exponent),), state, keeps=[_no_state(tape, x)])
    moved = tape.mul(dt, x)
    written = tape.fresh((moved, b), state, keeps=(moved, b))
    return tape.sum(tape.mul(tape.add(forgotten, written), c), x.shape)
