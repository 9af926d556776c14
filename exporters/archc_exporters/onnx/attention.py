"""Softmax attention over caches of a fixed capacity, or over rings.

Legend of shapes: N query heads, K key-value heads, H key width, V value width, W ring rows.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from archc.errors import GraphError
from archc.ir.values import Node
from archc.ops import attention as ops
from archc_exporters.onnx.cache_dtype import cache_dtype, cache_form
from archc_exporters.onnx.caches import (
    append,
    from_heads,
    joined,
    mask_of_one,
    replaced,
    ring_text,
    to_heads,
    turned,
    used_part,
)
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.group_query import QKV, group_query
from archc_exporters.onnx.limits import group_query_objection
from archc_exporters.onnx.prefix import attend_given
from archc_exporters.onnx.single import attend_one
from archc_exporters.onnx.sinks import attend_by_channel, attend_by_column
from archc_exporters.onnx.slopes import attend_by_mask, attend_sloping, sloping
from archc_exporters.onnx.step import (
    capacity_rows,
    causal_mask,
    is_many,
    past_column,
    positions,
    ring_filled,
    ring_mask,
    ring_seen,
    ring_seen_by_one,
)


def attention(
    ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value, *further: ir.Value
) -> ir.Value | tuple[ir.Value, ...]:
    """GroupQueryAttention over a full cache where it can, else Attention-24; over a ring under a float mask.

    ``further`` is the length of a prefix (batch,), or a bias (batch, N, seq, T) over the rows in use. Of shared rows the
    whole caches are given, (batch, K, capacity, width), or [ring | new tokens].
    """
    op = node.op
    assert isinstance(op, ops.Attention)
    objection = group_query_objection(op, ctx.target)
    by_kernel = ctx.target.sliding_window_cache or ctx.target.io == "genai"
    is_window = by_kernel and op.window is not None and not op.sink_tokens
    if op.shares:
        _check_shared(ctx, node, is_window=is_window and not objection)
    if (op.ring_rows() is None or is_window) and not objection:
        o = group_query(ctx, node, (q, k, v), window=op.window)
        return (o, ctx.kept_rows(node, "key"), ctx.kept_rows(node, "value")) if op.shares else o
    q = to_heads(ctx, q, op.num_heads, op.key_dim)
    k, v = to_heads(ctx, k, op.num_kv_heads, op.key_dim), to_heads(ctx, v, op.num_kv_heads, op.value_dim)
    if op.ring_rows() is None:
        rows = append(ctx, node, "key", k), append(ctx, node, "value", v)
        o = over_capacity(ctx, node, op, (q, *rows), *further)
    else:
        o, rows = _over_ring(ctx, node, op, (q, k, v))
    o = from_heads(ctx, o, op.num_heads * op.value_dim)
    return (o, *rows) if op.shares else o


def numbers_of(op: ops.Attention) -> dict[str, Any]:
    """Attributes of Attention-24."""
    return {"scale": op.scale} if op.soft_cap is None else {"scale": op.scale, "softcap": op.soft_cap}


def _check_shared(ctx: Lowering, node: Node, *, is_window: bool) -> None:
    """Refuse rows that no other layer can read.

    Raises:
        GraphError: a kernel keeps the window, or the rows are rounded.
    """
    if is_window:
        raise GraphError(
            f"{ctx.path}: later layers read its keys and values, and its kernel keeps the window for itself"
        )
    if cache_form(node.states["key"], ctx.target) is not None:
        kept = cache_dtype(node.states["key"], ctx.target)
        raise GraphError(
            f"{ctx.path}: later layers read its keys and values, which are kept as {kept}; export whole ones"
        )


def over_capacity(ctx: Lowering, node: Node, op: ops.Attention, qkv: QKV, *further: ir.Value) -> ir.Value:
    """Queries over keys and values that hold the new tokens already, (batch, K, capacity, width)."""
    q, keys, values = qkv
    numbers = numbers_of(op)
    if further:
        return attend_given(ctx, node, op, (q, keys, values), further[0], numbers)
    if op.slopes is not None:
        return attend_sloping(ctx, node, op, (q, keys, values), numbers)
    if not op.sinks:
        ctx.note(
            "TensorScatter and Attention with nonpad_kv_seqlen, batched chunks included; not GroupQueryAttention: "
            + group_query_objection(op, ctx.target)
        )
        if ctx.target.provider == "cpu":
            # Its kernel computes over the whole capacity, however few rows are in use.
            keys, values = used_part(ctx, keys), used_part(ctx, values)
        return ctx.op("Attention", q, keys, values, None, None, None, ctx.inputs["kv_length"], is_causal=1, **numbers)
    return _over_capacity_with_sinks(ctx, node, op, (q, keys, values), numbers)


def _over_capacity_with_sinks(
    ctx: Lowering, node: Node, op: ops.Attention, qkv: QKV, numbers: dict[str, Any]
) -> ir.Value:
    """Over a copy of the rows in use: a sink is one row more for many new tokens, one column of the scores for one."""
    q, keys, values = qkv

    def taken() -> QKV:
        return q, used_part(ctx, keys), used_part(ctx, values)

    def many() -> tuple[ir.Value]:
        if op.soft_cap is None:
            return (attend_by_channel(ctx, node, op, taken(), mask=None, numbers=numbers),)
        # Rows are cut from those of the capacity: Slice reads max_length on the host, a Range over it would copy it there.
        rows = used_part(ctx, capacity_rows(ctx, keys))
        mask = causal_mask(ctx, rows, positions(ctx))
        return (attend_by_column(ctx, node, op, taken(), mask=mask, numbers=numbers),)

    def one() -> tuple[ir.Value]:
        return (attend_one(ctx, node, op, taken(), mask_of_one(ctx, keys)),)

    ctx.note(
        f"TensorScatter and a copy of the rows in use; If(seq > 1): Attention, the sink a {_sink_form(op)}; else plain "
        f"products, the sink a column of the scores; not GroupQueryAttention: {group_query_objection(op, ctx.target)}"
    )
    return ctx.choose(is_many(ctx), many, one, (ctx.dtype,))[0]


def _over_ring(
    ctx: Lowering, node: Node, op: ops.Attention, qkv: QKV
) -> tuple[ir.Value, tuple[ir.Value, ir.Value] | tuple[()]]:
    """Many new tokens read [ring | new tokens]; one takes its place in the ring first and reads that where it lies.

    Where later layers read them, [ring | new tokens] are made in any case, and given beside the output.
    """
    q, k, v = qkv
    ctx.note(_ring_form(op))

    def both() -> tuple[ir.Value, ir.Value]:
        return joined(ctx, node, "key", k), joined(ctx, node, "value", v)

    shared = both() if op.shares else ()

    def many() -> tuple[ir.Value, ir.Value, ir.Value]:
        keys, values = shared or both()
        o = attend_ring(ctx, node, op, (q, keys, values))
        return o, turned(ctx, op, op.num_kv_heads, keys), turned(ctx, op, op.num_kv_heads, values)

    def one() -> tuple[ir.Value, ir.Value, ir.Value]:
        keys, values = replaced(ctx, node, op, "key", k), replaced(ctx, node, op, "value", v)
        return attend_one(ctx, node, op, (q, keys, values), _mask_of_one(ctx, op)), keys, values

    dtypes = (ctx.dtype, ctx.dtype, ctx.dtype)
    o, key, value = many() if op.sink_tokens else ctx.choose(is_many(ctx), many, one, dtypes)
    ctx.present(node, "key", key)
    ctx.present(node, "value", value)
    return o, shared


def _mask_of_one(ctx: Lowering, op: ops.Attention) -> ir.Value:
    rows = op.ring_rows()
    assert rows is not None
    if op.slopes is None:
        return ring_filled(ctx, rows, op.chunk)
    seen, held = ring_seen_by_one(ctx, rows, op.chunk)
    query = ctx.shared("past block", lambda: ctx.op("Unsqueeze", past_column(ctx), ctx.ints(2)))
    return ctx.shared(("slopes of one", op.slopes, rows, op.chunk), lambda: sloping(ctx, op, seen, held, query))


def attend_ring(ctx: Lowering, node: Node, op: ops.Attention, qkv: QKV) -> ir.Value:
    """Attention over [ring | new tokens] under a mask from the positions of its rows."""
    q, keys, values = qkv
    numbers = numbers_of(op)
    if op.slopes is not None:
        seen = ring_seen(ctx, window=op.window, chunk=op.chunk, sink_tokens=op.sink_tokens)
        key = ("slopes", op.slopes, op.ring_rows(), op.sink_tokens, op.chunk)
        return attend_by_mask(ctx, node, op, qkv, ctx.shared(key, lambda: sloping(ctx, op, *seen)), numbers)
    mask = ring_mask(ctx, window=op.window, chunk=op.chunk, sink_tokens=op.sink_tokens)
    if not op.sinks:
        return ctx.op("Attention", q, keys, values, mask, **numbers)
    attend = attend_by_channel if op.soft_cap is None else attend_by_column
    return attend(ctx, node, op, qkv, mask=mask, numbers=numbers)


def _ring_form(op: ops.Attention) -> str:
    slopes = "slopes and the ring in one" if op.slopes is not None else "a"
    form = f"Attention over [{ring_text(op)} | new tokens] under {slopes} float mask"
    if op.sinks:
        form += f", the sink a {_sink_form(op)}"
    return (
        form if op.sink_tokens else f"If(seq > 1): {form}; else TensorScatter and plain products over the ring in place"
    )


def _sink_form(op: ops.Attention) -> str:
    if op.soft_cap is None:
        return "channel, so that no mask a head is needed"
    return "mask column a head, because the soft cap would bend a channel's score"
