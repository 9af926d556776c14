"""com.microsoft GroupQueryAttention: rotation, cache, causality, sinks and soft cap in one kernel."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from archc.ir.size import CAPACITY
from archc.ir.values import Node
from archc.ops.attention import Attention
from archc_exporters.onnx.cache_dtype import cache_dtype, cache_form
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.limits import can_turn_inside
from archc_exporters.onnx.states import ROLLING
from archc_exporters.onnx.step import last_key, total_length

QKV = tuple[ir.Value, ir.Value, ir.Value]
"""Queries, keys and values of new tokens, (batch, seq, heads x width)."""


def group_query(ctx: Lowering, node: Node, qkv: QKV, *, window: int | None = None) -> ir.Value:
    """(batch, seq, N x H) over caches (batch, K, capacity, H); under a ``window``, over as many or over a rolling cache.

    Padded tokens count as new ones: their rows are written behind the true ones, unseen by them, and overwritten later.
    """
    op = node.op
    assert isinstance(op, Attention)
    (q, k, v), rotation = _rotation(ctx, qkv, op.key_dim)
    numbers: dict[str, Any] = {"num_heads": op.num_heads, "kv_num_heads": op.num_kv_heads, "scale": op.scale}
    tables: tuple[ir.Value | None, ir.Value | None] = (None, None)
    if rotation is not None:
        tables = (rotation.inputs[1], rotation.inputs[2])
        numbers |= {"do_rotary": 1, "rotary_interleaved": rotation.attributes["interleaved"].as_int()}
    if op.soft_cap is not None:
        numbers["softcap"] = op.soft_cap
    rolling, rows = window is not None and ctx.target.sliding_window_cache, ""
    if window is not None:
        numbers["local_window_size"] = window
        if ctx.target.io == "genai":
            # Its runtime allocates rows for all tokens, or for a rolling cache as many as it finds fit, the window's at least.
            rows = f"{ROLLING}{window}" if rolling else str(CAPACITY)
    if rolling:
        numbers["sliding_window_cache"] = 1
    sinks = ctx.weight(node, "sinks") if op.sinks else None
    form, scales = cache_form(node.states["key"], ctx.target), (None, None)
    if form is not None:
        scales = (ctx.cache_scale(node, "key"), ctx.cache_scale(node, "value"))
        numbers |= {"kv_cache_bit_width": form.bits, "k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
    inside = ", ".join(
        what
        for what, there in (
            ("rotation", rotation is not None),
            ("soft cap", op.soft_cap is not None),
            ("sinks", op.sinks),
            (f"a rolling window of {window} rows", rolling),
            (f"a window of {window} tokens", window is not None and not rolling),
            (f"a cache in {cache_dtype(node.states['key'], ctx.target)} with a step a channel", form is not None),
        )
        if there
    )
    ctx.note(
        f"GroupQueryAttention{f' with {inside} inside' if inside else ''}: one kernel over the cache in place"
        "; chunks over a past at batch 1 only"
    )
    o, key, value = ctx.ops(
        "GroupQueryAttention",
        q,
        k,
        v,
        ctx.past(node, "key", rows),
        ctx.past(node, "value", rows),
        last_key(ctx),
        total_length(ctx),
        *tables,
        None,
        None,
        sinks,
        *scales,
        dtypes=(None, *(ctx.state_dtype(node.states[role]) for role in ("key", "value"))),
        domain=MS,
        **numbers,
    )
    ctx.present(node, "key", key)
    ctx.present(node, "value", value)
    return o


def _rotation(ctx: Lowering, qkv: QKV, head_dim: int) -> tuple[QKV, ir.Node | None]:
    """(queries, keys and values before they turn, the node that turns the queries) where the kernel can turn them itself."""
    q, k, v = qkv
    turns = [value.producer() for value in (q, k)]
    if any(turn is None or turn.op_type != "RotaryEmbedding" for turn in turns):
        return qkv, None
    first, second = turns
    assert first is not None
    assert second is not None
    alike = first.inputs[1:] == second.inputs[1:] and all(
        first.attributes[name].as_int() == second.attributes[name].as_int()
        for name in ("interleaved", "rotary_embedding_dim")
    )
    turned = first.attributes["rotary_embedding_dim"].as_int() or head_dim
    if not alike or not can_turn_inside(turned, ctx.target) or first.inputs[0] is None or second.inputs[0] is None:
        return qkv, None
    return (first.inputs[0], second.inputs[0], v), first
