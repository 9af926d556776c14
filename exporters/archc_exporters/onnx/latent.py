"""Latent attention (MLA): one row a token in the cache, expanded for many new tokens, absorbed for one.

Legend of shapes: N heads, R latent rank, V value width, T rows read.
"""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import attention as ops
from archc.ops.sparse_latent import SparseLatentAttention
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
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.rotary import turned_part
from archc_exporters.onnx.step import is_many, ring_filled, ring_mask
from archc_exporters.onnx.transforms import Parts
from archc_exporters.onnx.weights import Array

Latent = ops.LatentAttention | SparseLatentAttention


class Query:
    """The query (batch, N, seq, nope_dim + rope_dim), whole and in its two parts, made where they are asked for."""

    def __init__(self, ctx: Lowering, op: Latent, q: ir.Value) -> None:
        self._ctx, self._op = ctx, op
        parts = turned_part(ctx, q, op.num_heads, op.nope_dim + op.rope_dim, offset=op.nope_dim)
        self._parts = parts
        self._whole = None if parts else to_heads(ctx, q, op.num_heads, op.nope_dim + op.rope_dim)

    def whole(self) -> ir.Value:
        if self._whole is not None:
            return self._whole
        assert self._parts is not None
        return self._ctx.op("Concat", *self._parts, axis=-1)

    def parts(self) -> tuple[ir.Value, ir.Value]:
        """(nope_dim channels, rope_dim channels)."""
        if self._parts is not None:
            return self._parts
        sizes = self._ctx.ints(self._op.nope_dim, self._op.rope_dim)
        own, rotated = self._ctx.ops("Split", self.whole(), sizes, dtypes=(None, None), axis=-1)
        return own, rotated


def latent_attention(ctx: Lowering, node: Node, q: ir.Value, latent: ir.Value, shared_key: ir.Value) -> ir.Value:
    """Expanded for many new tokens, absorbed for one, chosen at run time; only latent rows are cached."""
    op = node.op
    assert isinstance(op, ops.LatentAttention)
    row = ctx.op("Unsqueeze", ctx.op("Concat", latent, shared_key, axis=-1), ctx.ints(1))
    query = Query(ctx, op, q)
    read = "the used rows" if op.window is None else f"[{ring_text(op)} | new tokens] under a float mask"
    ctx.note(f"If(seq > 1): keys and values expanded from {read}, else the projection absorbed into query and output")
    if op.window is None:
        cache = append(ctx, node, "latent", row)
        o = ctx.choose(
            is_many(ctx),
            lambda: (expanded(ctx, node, op, query, used_part(ctx, cache)),),
            lambda: (absorbed(ctx, node, op, query, used_part(ctx, cache), mask_of_one(ctx, cache)),),
            (ctx.dtype,),
        )[0]
    else:
        o = _over_ring(ctx, node, op, query, row)
    return from_heads(ctx, o, op.num_heads * op.value_dim)


def _over_ring(ctx: Lowering, node: Node, op: ops.LatentAttention, query: Query, row: ir.Value) -> ir.Value:
    def mask() -> ir.Value:
        return ring_mask(ctx, window=op.window, sink_tokens=op.sink_tokens)

    def many() -> tuple[ir.Value, ir.Value]:
        both = joined(ctx, node, "latent", row)
        return expanded(ctx, node, op, query, both, mask()), turned(ctx, op, 1, both)

    def one() -> tuple[ir.Value, ir.Value]:
        if op.sink_tokens:
            both = joined(ctx, node, "latent", row)
            return absorbed(ctx, node, op, query, both, mask()), turned(ctx, op, 1, both)
        ring = replaced(ctx, node, op, "latent", row)
        return absorbed(ctx, node, op, query, ring, ring_filled(ctx, op.ring_rows() or 0)), ring

    o, ring = ctx.choose(is_many(ctx), many, one, (ctx.dtype, ctx.dtype))
    ctx.present(node, "latent", ring)
    return o


def expanded(
    ctx: Lowering,
    node: Node,
    op: Latent,
    query: Query,
    rows: ir.Value,
    mask: ir.Value | None = None,
) -> ir.Value:
    """Keys and values of every head from the rows (batch, 1, T, R + rope_dim): (batch, N, seq, V). Causal without a mask."""
    latent, shared_key = ctx.ops("Split", rows, ctx.ints(op.kv_lora_rank, op.rope_dim), dtypes=(None, None), axis=-1)
    own = ctx.op("FusedMatMul", latent, _key_weight(ctx, node, op), domain=MS, transB=1)
    keys = ctx.op("Concat", own, ctx.op("Expand", shared_key, ctx.ints(1, op.num_heads, 1, 1)), axis=-1)
    values = ctx.op("MatMul", latent, _value_weight(ctx, node, op))
    if mask is not None:
        return ctx.op("Attention", query.whole(), keys, values, mask, scale=op.scale)
    length = ctx.inputs["kv_length"]
    return ctx.op("Attention", query.whole(), keys, values, None, None, None, length, is_causal=1, scale=op.scale)


def absorbed(ctx: Lowering, node: Node, op: Latent, query: Query, rows: ir.Value, mask: ir.Value) -> ir.Value:
    """All heads of one token against the one row a key, (batch, N, 1, V).

    Heads are the rows of two plain products: Attention would copy the cache for each of them. Values are the rows again,
    whose shared key's part is cut off afterwards, which is less than a copy of their latent part.
    """
    width = op.kv_lora_rank + op.rope_dim
    own, rotated = query.parts()
    moved = ctx.op("Concat", ctx.op("MatMul", own, _key_weight(ctx, node, op)), rotated, axis=-1)
    heads = ctx.op("Reshape", moved, ctx.ints(0, 1, op.num_heads, width))
    scores = ctx.op("FusedMatMul", heads, rows, domain=MS, transB=1, alpha=op.scale)
    shares = ctx.op("Softmax", ctx.op("Add", scores, mask), axis=-1)
    mixed = ctx.op("Reshape", ctx.op("MatMul", shares, rows), ctx.ints(0, op.num_heads, 1, width))
    latent = ctx.op("Slice", mixed, ctx.ints(0), ctx.ints(op.kv_lora_rank), ctx.ints(3))
    return ctx.op("MatMul", latent, _value_weight(ctx, node, op))


def _key_weight(ctx: Lowering, node: Node, op: Latent) -> ir.Value:
    """The key part of kv_b_proj, (N, nope_dim, R)."""
    heads, nope, value, rank = op.num_heads, op.nope_dim, op.value_dim, op.kv_lora_rank

    def key_part(weight: Array) -> Array:
        return weight.reshape(-1, nope + value, rank)[:, :nope]

    return ctx.weight(node, "kv_b_proj", tag="keys", shape=(heads, nope, rank), transform=Parts(key_part, heads))


def _value_weight(ctx: Lowering, node: Node, op: Latent) -> ir.Value:
    """The value part of kv_b_proj, transposed: (N, R, value_dim)."""
    heads, nope, value, rank = op.num_heads, op.nope_dim, op.value_dim, op.kv_lora_rank

    def value_part(weight: Array) -> Array:
        return weight.reshape(-1, nope + value, rank)[:, nope:].transpose(0, 2, 1)

    return ctx.weight(node, "kv_b_proj", tag="values", shape=(heads, rank, value), transform=Parts(value_part, heads))
