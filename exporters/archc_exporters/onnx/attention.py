"""Softmax attention and latent attention over caches of a fixed capacity, or over rings.

Legend of shapes: N query heads, K key-value heads, H key width, V value width, W ring rows, R latent rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import attention as ops
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.step import is_many, ring_mask, ring_source, sink_mask
from archc_exporters.onnx.weights import NUMPY_DTYPES, Array


def to_heads(ctx: Lowering, x: ir.Value, heads: int, head_dim: int) -> ir.Value:
    """(batch, seq, heads x head_dim) -> (batch, heads, seq, head_dim)."""
    return ctx.op("Transpose", ctx.op("Reshape", x, ctx.ints(0, 0, heads, head_dim)), perm=[0, 2, 1, 3])


def from_heads(ctx: Lowering, x: ir.Value, width: int) -> ir.Value:
    """(batch, heads, seq, head_dim) -> (batch, seq, width)."""
    return ctx.op("Reshape", ctx.op("Transpose", x, perm=[0, 2, 1, 3]), ctx.ints(0, 0, width))


def attention(ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
    """Attention-24: causal over a full cache, or with a float mask over a ring or where sinks join the softmax."""
    op = node.op
    assert isinstance(op, ops.Attention)
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
    if not op.sinks:
        ctx.note("TensorScatter and Attention with nonpad_kv_seqlen: batched chunks, ragged rows, any head widths")
        return ctx.op("Attention", q, keys, values, None, None, None, ctx.inputs["kv_length"], is_causal=1, **numbers)
    ctx.note(
        "TensorScatter and Attention with a float mask whose last column is the sink logit, over a row of zeros: for one "
        "new token the reserved last row of the cache, which copies nothing; for many a row behind a copy of those in use, "
        "because a mask a head as wide as the capacity would not fit"
    )
    mask = _with_sinks(ctx, node, op, sink_mask(ctx, ctx.past(node, "key")))

    def over_used() -> ir.Value:
        pairs = ((keys, op.key_dim), (values, op.value_dim))
        return ctx.op(
            "Attention", q, *(_used_and_zero(ctx, op, cache, width) for cache, width in pairs), mask, **numbers
        )

    def over_all() -> ir.Value:
        return ctx.op("Attention", q, keys, values, mask, **numbers)

    o = ctx.op(
        "If",
        is_many(ctx),
        dtype=ctx.dtype,
        then_branch=ctx.branch("used", over_used),
        else_branch=ctx.branch("all", over_all),
    )
    return o


def _over_ring(
    ctx: Lowering, node: Node, op: ops.Attention, qkv: tuple[ir.Value, ir.Value, ir.Value], numbers: dict[str, Any]
) -> ir.Value:
    q, k, v = qkv
    rows = op.window or op.chunk
    assert rows is not None
    index, taken = ring_source(ctx, rows)
    mask = ring_mask(ctx, window=op.window, chunk=op.chunk)
    joined: list[ir.Value] = []
    for role, new, width in (("key", k, op.key_dim), ("value", v, op.value_dim)):
        past = ctx.past(node, role)
        by_token = ctx.op("Transpose", new, perm=[0, 2, 1, 3])
        landed = ctx.op("Transpose", ctx.op("GatherND", by_token, index, batch_dims=1), perm=[0, 2, 1, 3])
        ctx.present(node, role, ctx.op("Where", taken, landed, past, dtype=past.dtype))
        parts = [past, new]
        if op.sinks:
            parts.append(_zero_row(ctx, op.num_kv_heads, width))
        joined.append(ctx.op("Concat", *parts, axis=2))
    what = "window" if op.window is not None else "chunk"
    sink = " and a zero row whose mask entry is the sink logit" if op.sinks else ""
    ctx.note(f"Attention over [ring of {rows} rows | new tokens]{sink}, float mask from slot positions ({what})")
    if op.sinks:
        mask = _with_sinks(ctx, node, op, mask)
    return ctx.op("Attention", q, *joined, mask, **numbers)


def append(ctx: Lowering, node: Node, role: str, rows: ir.Value) -> ir.Value:
    """The cache with new rows (batch, K, seq, width) at each row's own length; padding is written and overwritten later."""
    past = ctx.past(node, role)
    return ctx.present(node, role, ctx.op("TensorScatter", past, rows, ctx.inputs["past_length"], axis=2))


def _with_sinks(ctx: Lowering, node: Node, op: ops.Attention, mask: ir.Value) -> ir.Value:
    """The mask (batch, 1, seq, T) a head, with the head's sink logit as its last column: (batch, N, seq, T + 1)."""
    heads = op.num_heads

    def as_column(sinks: Array) -> Array:
        return sinks.reshape(1, heads, 1, 1)

    sinks = ctx.weight(node, "sinks", tag="column", shape=(1, heads, 1, 1), transform=as_column)

    def shape() -> ir.Value:
        batch, seq = (ctx.op("Shape", mask, dtype=ir.DataType.INT64, start=at, end=at + 1) for at in (0, 2))
        return ctx.op("Concat", batch, ctx.ints(heads), seq, ctx.ints(1), axis=0)

    column = ctx.op("Expand", sinks, ctx.shared(("sink column", heads), shape))
    by_head = ctx.shared(("mask a head", heads, mask.name), lambda: ctx.op("Expand", mask, ctx.ints(1, heads, 1, 1)))
    return ctx.op("Concat", by_head, column, axis=-1)


def _used_and_zero(ctx: Lowering, op: ops.Attention, cache: ir.Value, width: int) -> ir.Value:
    """The rows in use of a full cache and one of zeros, (batch, K, max_length + 1, width)."""
    used = ctx.op("Slice", cache, ctx.ints(0), ctx.inputs["max_length"], ctx.ints(2))
    return ctx.op("Concat", used, _zero_row(ctx, op.num_kv_heads, width), axis=2)


def _zero_row(ctx: Lowering, kv_heads: int, width: int) -> ir.Value:
    """(batch, K, 1, width) of zeros, for a sink."""

    def make() -> ir.Value:
        batch = ctx.op("Shape", ctx.inputs["input_ids"], dtype=ir.DataType.INT64, start=0, end=1)
        zeros = ctx.constant(np.zeros((1, kv_heads, 1, width), NUMPY_DTYPES[ctx.dtype]))
        return ctx.op("Expand", zeros, ctx.op("Concat", batch, ctx.ints(1, 1, 1), axis=0))

    return ctx.shared(("zero row", kv_heads, width), make)


def latent_attention(ctx: Lowering, node: Node, q: ir.Value, latent: ir.Value, shared_key: ir.Value) -> ir.Value:
    """One latent row a token in the cache; expanded for many new tokens, absorbed for one, chosen at run time."""
    op = node.op
    assert isinstance(op, ops.LatentAttention)
    row = ctx.op("Unsqueeze", ctx.op("Concat", latent, shared_key, axis=-1), ctx.ints(1))
    cache = append(ctx, node, "latent", row)
    q = to_heads(ctx, q, op.num_heads, op.nope_dim + op.rope_dim)
    ctx.note(
        "If(seq > 1): keys and values expanded from the used rows, else the projection absorbed into query and output"
    )
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
    used = ctx.op("Slice", cache, ctx.ints(0), ctx.inputs["max_length"], ctx.ints(2))
    latent, shared_key = ctx.ops("Split", used, ctx.ints(op.kv_lora_rank, op.rope_dim), dtypes=(None, None), axis=-1)
    own = ctx.op("FusedMatMul", latent, _key_weight(ctx, node, op), domain=MS, transB=1)
    keys = ctx.op("Concat", own, ctx.op("Expand", shared_key, ctx.ints(1, op.num_heads, 1, 1)), axis=-1)
    values = ctx.op("MatMul", latent, _value_weight(ctx, node, op))
    return _causal(ctx, op, q, keys, values)


def _absorbed(ctx: Lowering, node: Node, op: ops.LatentAttention, q: ir.Value, cache: ir.Value) -> ir.Value:
    """All heads against the one latent row a token, (batch, N, seq, V)."""
    own, turned = ctx.ops("Split", q, ctx.ints(op.nope_dim, op.rope_dim), dtypes=(None, None), axis=-1)
    query = ctx.op("Concat", ctx.op("MatMul", own, _key_weight(ctx, node, op)), turned, axis=-1)
    values = ctx.op("Slice", cache, ctx.ints(0), ctx.ints(op.kv_lora_rank), ctx.ints(3))
    return ctx.op("MatMul", _causal(ctx, op, query, cache, values), _value_weight(ctx, node, op))


def _causal(ctx: Lowering, op: ops.LatentAttention, q: ir.Value, keys: ir.Value, values: ir.Value) -> ir.Value:
    length = ctx.inputs["kv_length"]
    return ctx.op("Attention", q, keys, values, None, None, None, length, is_causal=1, scale=op.scale)


def _key_weight(ctx: Lowering, node: Node, op: ops.LatentAttention) -> ir.Value:
    """The key part of kv_b_proj, (N, nope_dim, R)."""
    heads, nope, value, rank = op.num_heads, op.nope_dim, op.value_dim, op.kv_lora_rank

    def key_part(weight: Array) -> Array:
        return weight.reshape(heads, nope + value, rank)[:, :nope]

    return ctx.weight(node, "kv_b_proj", tag="keys", shape=(heads, nope, rank), transform=key_part)


def _value_weight(ctx: Lowering, node: Node, op: ops.LatentAttention) -> ir.Value:
    """The value part of kv_b_proj, transposed: (N, R, value_dim)."""
    heads, nope, value, rank = op.num_heads, op.nope_dim, op.value_dim, op.kv_lora_rank

    def value_part(weight: Array) -> Array:
        return weight.reshape(heads, nope + value, rank)[:, nope:].transpose(0, 2, 1)

    return ctx.weight(node, "kv_b_proj", tag="values", shape=(heads, rank, value), transform=value_part)
