"""Softmax attention and latent attention over caches of a fixed capacity, or over rings.

Legend of shapes: N query heads, K key-value heads, H key width, V value width, W ring rows, R latent rank.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import attention as ops
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.group_query import group_query
from archc_exporters.onnx.limits import group_query_objection
from archc_exporters.onnx.sinks import attend_by_channel, attend_by_column
from archc_exporters.onnx.slopes import attend_by_mask, attend_sloping, sloping
from archc_exporters.onnx.step import (
    capacity_rows,
    causal_mask,
    is_many,
    past_column,
    positions,
    ring_mask,
    ring_seen,
    ring_source,
)
from archc_exporters.onnx.transforms import Parts
from archc_exporters.onnx.weights import Array


def to_heads(ctx: Lowering, x: ir.Value, heads: int, head_dim: int) -> ir.Value:
    """(batch, seq, heads x head_dim) -> (batch, heads, seq, head_dim)."""
    return ctx.op("Transpose", ctx.op("Reshape", x, ctx.ints(0, 0, heads, head_dim)), perm=[0, 2, 1, 3])


def from_heads(ctx: Lowering, x: ir.Value, width: int) -> ir.Value:
    """(batch, heads, seq, head_dim) -> (batch, seq, width)."""
    return ctx.op("Reshape", ctx.op("Transpose", x, perm=[0, 2, 1, 3]), ctx.ints(0, 0, width))


def attention(ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
    """GroupQueryAttention over a full cache where it can, else Attention-24; over a ring under a float mask."""
    op = node.op
    assert isinstance(op, ops.Attention)
    objection = group_query_objection(op, ctx.target)
    if op.ring_rows() is None and not objection:
        return group_query(ctx, node, (q, k, v))
    by_kernel = ctx.target.sliding_window_cache or ctx.target.io == "genai"
    if by_kernel and op.window is not None and not op.sink_tokens and not objection:
        return group_query(ctx, node, (q, k, v), window=op.window)
    q = to_heads(ctx, q, op.num_heads, op.key_dim)
    k, v = to_heads(ctx, k, op.num_kv_heads, op.key_dim), to_heads(ctx, v, op.num_kv_heads, op.value_dim)
    numbers: dict[str, Any] = {"scale": op.scale}
    if op.soft_cap is not None:
        numbers["softcap"] = op.soft_cap
    if op.window is not None or op.chunk is not None:
        o = _over_ring(ctx, node, op, (q, k, v), numbers)
    else:
        o = _over_capacity(ctx, node, op, (q, k, v), numbers)
    return from_heads(ctx, o, op.num_heads * op.value_dim)


def _over_capacity(
    ctx: Lowering, node: Node, op: ops.Attention, qkv: tuple[ir.Value, ir.Value, ir.Value], numbers: dict[str, Any]
) -> ir.Value:
    q, k, v = qkv
    keys, values = append(ctx, node, "key", k), append(ctx, node, "value", v)
    if op.slopes is not None:
        return attend_sloping(ctx, node, op, (q, keys, values), numbers)
    if not op.sinks:
        ctx.note(
            "TensorScatter and Attention with nonpad_kv_seqlen, batched chunks included; not GroupQueryAttention: "
            + group_query_objection(op, ctx.target)
        )
        return ctx.op("Attention", q, keys, values, None, None, None, ctx.inputs["kv_length"], is_causal=1, **numbers)
    return _over_capacity_with_sinks(ctx, node, op, (q, keys, values), numbers)


def _over_capacity_with_sinks(
    ctx: Lowering, node: Node, op: ops.Attention, qkv: tuple[ir.Value, ir.Value, ir.Value], numbers: dict[str, Any]
) -> ir.Value:
    """One new token reads the whole cache in place, many a copy of the rows in use, because a mask a head would not fit."""
    q, keys, values = qkv
    rows = capacity_rows(ctx, ctx.past(node, "key"))

    def used(cache: ir.Value) -> ir.Value:
        return ctx.op("Slice", cache, ctx.ints(0), ctx.inputs["max_length"], ctx.ints(2))

    def many() -> ir.Value:
        taken = (q, used(keys), used(values))
        if op.soft_cap is None:
            return attend_by_channel(ctx, node, op, taken, mask=None, numbers=numbers)
        # Rows are cut from those of the capacity: Slice reads max_length on the host, a Range over it would copy it there.
        mask = causal_mask(ctx, used(rows), positions(ctx))
        return attend_by_column(ctx, node, op, taken, mask=mask, numbers=numbers)

    def one() -> ir.Value:
        # Of one token a row, whatever seq is: all layers share it, and many tokens pay nothing for it.
        mask = ctx.shared("capacity mask", lambda: causal_mask(ctx, rows, past_column(ctx)))
        return attend_by_column(ctx, node, op, (q, keys, values), mask=mask, numbers=numbers, reserved=True)

    ctx.note(
        f"TensorScatter and If(seq > 1): Attention over a copy of the rows in use, the sink a {_sink_form(op)}; "
        "else over the cache in place, its reserved last row the sink, the logit in the mask"
    )
    return ctx.op(
        "If",
        is_many(ctx),
        dtype=ctx.dtype,
        then_branch=ctx.branch("many", many),
        else_branch=ctx.branch("one", one),
    )


def _over_ring(
    ctx: Lowering, node: Node, op: ops.Attention, qkv: tuple[ir.Value, ir.Value, ir.Value], numbers: dict[str, Any]
) -> ir.Value:
    q, k, v = qkv
    rows = op.ring_rows()
    assert rows is not None
    keys, values = (turn(ctx, node, op, role, new) for role, new in (("key", k), ("value", v)))
    if op.slopes is not None:
        ctx.note(f"Attention over [{_ring_text(op)} | new tokens], slopes and the ring in one float mask")
        seen = ring_seen(ctx, window=op.window, chunk=op.chunk, sink_tokens=op.sink_tokens)
        mask = ctx.shared(("slopes", op.slopes, rows, op.sink_tokens, op.chunk), lambda: sloping(ctx, op, *seen))
        return attend_by_mask(ctx, node, op, (q, keys, values), mask, numbers)
    mask = ring_mask(ctx, window=op.window, chunk=op.chunk, sink_tokens=op.sink_tokens)
    what = f"Attention over [{_ring_text(op)} | new tokens], float mask from slot positions"
    if not op.sinks:
        ctx.note(what)
        return ctx.op("Attention", q, keys, values, mask, **numbers)
    ctx.note(f"{what}; the sink is a {_sink_form(op)}")
    attend = attend_by_channel if op.soft_cap is None else attend_by_column
    return attend(ctx, node, op, (q, keys, values), mask=mask, numbers=numbers)


def _ring_text(op: ops.Attention | ops.LatentAttention) -> str:
    rows = op.ring_rows()
    return f"{op.sink_tokens} first tokens and a ring of {op.window} rows" if op.sink_tokens else f"ring of {rows} rows"


def turn(ctx: Lowering, node: Node, op: ops.Attention | ops.LatentAttention, role: str, new: ir.Value) -> ir.Value:
    """[ring before the call | new rows], (batch, K, rows + seq, width); the ring itself gets the rows that it holds after it."""
    rows = op.ring_rows()
    assert rows is not None
    index, taken = ring_source(ctx, rows, op.sink_tokens)
    past = ctx.past(node, role)
    by_token = ctx.op("Transpose", new, perm=[0, 2, 1, 3])
    landed = ctx.op("Transpose", ctx.op("GatherND", by_token, index, batch_dims=1), perm=[0, 2, 1, 3])
    ctx.present(node, role, ctx.op("Where", taken, landed, past, dtype=past.dtype))
    return ctx.op("Concat", past, new, axis=2)


def _sink_form(op: ops.Attention) -> str:
    if op.soft_cap is None:
        return "channel, so that no mask a head is needed"
    return "mask column a head, because the soft cap would bend a channel's score"


def append(ctx: Lowering, node: Node, role: str, rows: ir.Value) -> ir.Value:
    """The cache with new rows (batch, K, seq, width) at each row's own length; padding is written and overwritten later."""
    past = ctx.past(node, role)
    return ctx.present(node, role, ctx.op("TensorScatter", past, rows, ctx.inputs["past_length"], axis=2))


def latent_attention(ctx: Lowering, node: Node, q: ir.Value, latent: ir.Value, shared_key: ir.Value) -> ir.Value:
    """One latent row a token in the cache; expanded for many new tokens, absorbed for one, chosen at run time."""
    op = node.op
    assert isinstance(op, ops.LatentAttention)
    row = ctx.op("Unsqueeze", ctx.op("Concat", latent, shared_key, axis=-1), ctx.ints(1))
    q = to_heads(ctx, q, op.num_heads, op.nope_dim + op.rope_dim)
    if op.window is None:
        cache, read = append(ctx, node, "latent", row), "the used rows"
    else:
        cache, read = turn(ctx, node, op, "latent", row), f"[{_ring_text(op)} | new tokens] under a float mask"
    ctx.note(f"If(seq > 1): keys and values expanded from {read}, else the projection absorbed into query and output")
    o = ctx.op(
        "If",
        is_many(ctx),
        dtype=ctx.dtype,
        then_branch=ctx.branch("expanded", lambda: _expanded(ctx, node, op, q, cache)),
        else_branch=ctx.branch("absorbed", lambda: _absorbed(ctx, node, op, q, cache)),
    )
    return from_heads(ctx, o, op.num_heads * op.value_dim)


def _expanded(ctx: Lowering, node: Node, op: ops.LatentAttention, q: ir.Value, cache: ir.Value) -> ir.Value:
    """Keys and values of every head from the rows in use, (batch, N, seq, V)."""
    used = cache
    if op.window is None:
        used = ctx.op("Slice", cache, ctx.ints(0), ctx.inputs["max_length"], ctx.ints(2))
    latent, shared_key = ctx.ops("Split", used, ctx.ints(op.kv_lora_rank, op.rope_dim), dtypes=(None, None), axis=-1)
    own = ctx.op("FusedMatMul", latent, _key_weight(ctx, node, op), domain=MS, transB=1)
    keys = ctx.op("Concat", own, ctx.op("Expand", shared_key, ctx.ints(1, op.num_heads, 1, 1)), axis=-1)
    values = ctx.op("MatMul", latent, _value_weight(ctx, node, op))
    return _attend(ctx, op, q, keys, values)


def _absorbed(ctx: Lowering, node: Node, op: ops.LatentAttention, q: ir.Value, cache: ir.Value) -> ir.Value:
    """All heads of one token against the one latent row a key, (batch, N, 1, V).

    Heads are the rows of two plain products: Attention would copy the cache for each of them. Values are the rows again,
    whose shared key's part is cut off afterwards, which is less than a copy of their latent part.
    """
    own, turned = ctx.ops("Split", q, ctx.ints(op.nope_dim, op.rope_dim), dtypes=(None, None), axis=-1)
    query = ctx.op("Concat", ctx.op("MatMul", own, _key_weight(ctx, node, op)), turned, axis=-1)
    heads = ctx.op("Reshape", query, ctx.ints(0, 1, op.num_heads, op.kv_lora_rank + op.rope_dim))
    used, mask = _read_by_one(ctx, op, cache)
    scores = ctx.op("FusedMatMul", heads, used, domain=MS, transB=1, alpha=op.scale)
    shares = ctx.op("Softmax", ctx.op("Add", scores, mask), axis=-1)
    mixed = ctx.op(
        "Reshape", ctx.op("MatMul", shares, used), ctx.ints(0, op.num_heads, 1, op.kv_lora_rank + op.rope_dim)
    )
    latent = ctx.op("Slice", mixed, ctx.ints(0), ctx.ints(op.kv_lora_rank), ctx.ints(3))
    return ctx.op("MatMul", latent, _value_weight(ctx, node, op))


def _read_by_one(ctx: Lowering, op: ops.LatentAttention, cache: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Rows that one new token a sequence may see, (batch, 1, T, R + rope_dim), and their mask, (batch, 1, 1, T)."""
    if op.window is not None:
        return cache, ring_mask(ctx, window=op.window, sink_tokens=op.sink_tokens)

    def used(rows: ir.Value) -> ir.Value:
        return ctx.op("Slice", rows, ctx.ints(0), ctx.inputs["max_length"], ctx.ints(2))

    def make() -> ir.Value:
        return causal_mask(ctx, used(capacity_rows(ctx, cache, reserved=False)), past_column(ctx))

    return used(cache), ctx.shared("mask of one over the used rows", make)


def _attend(ctx: Lowering, op: ops.LatentAttention, q: ir.Value, keys: ir.Value, values: ir.Value) -> ir.Value:
    """Causal over a full cache, under the ring's mask over [ring | new tokens]."""
    if op.window is not None:
        mask = ring_mask(ctx, window=op.window, sink_tokens=op.sink_tokens)
        return ctx.op("Attention", q, keys, values, mask, scale=op.scale)
    length = ctx.inputs["kv_length"]
    return ctx.op("Attention", q, keys, values, None, None, None, length, is_causal=1, scale=op.scale)


def _key_weight(ctx: Lowering, node: Node, op: ops.LatentAttention) -> ir.Value:
    """The key part of kv_b_proj, (N, nope_dim, R)."""
    heads, nope, value, rank = op.num_heads, op.nope_dim, op.value_dim, op.kv_lora_rank

    def key_part(weight: Array) -> Array:
        return weight.reshape(-1, nope + value, rank)[:, :nope]

    return ctx.weight(node, "kv_b_proj", tag="keys", shape=(heads, nope, rank), transform=Parts(key_part, heads))


def _value_weight(ctx: Lowering, node: Node, op: ops.LatentAttention) -> ir.Value:
    """The value part of kv_b_proj, transposed: (N, R, value_dim)."""
    heads, nope, value, rank = op.num_heads, op.nope_dim, op.value_dim, op.kv_lora_rank

    def value_part(weight: Array) -> Array:
        return weight.reshape(-1, nope + value, rank)[:, nope:].transpose(0, 2, 1)

    return ctx.weight(node, "kv_b_proj", tag="values", shape=(heads, rank, value), transform=Parts(value_part, heads))
