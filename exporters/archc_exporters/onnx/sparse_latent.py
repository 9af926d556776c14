"""Latent attention over the keys that an indexer chooses: TopK, then a mask for many new tokens, a gather for one.

Legend of shapes: I index heads, D their width, C chosen keys, T rows read, X width of a latent row.
"""

from __future__ import annotations

from typing import Protocol

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops.sparse_latent import SparseLatentAttention
from archc_exporters.onnx.caches import append, from_heads, used_part
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.latent import Query, absorbed, expanded
from archc_exporters.onnx.step import capacity_rows, is_many, lowest, past_column, positions, used_rows


class Indexed(Protocol):
    """An op whose small heads score keys."""

    @property
    def index_heads(self) -> int: ...

    @property
    def index_dim(self) -> int: ...


UNSEEN = -3e38
"""The score of a key that a token does not see, below any other's and finite in float32."""


def sparse_latent_attention(
    ctx: Lowering,
    node: Node,
    q: ir.Value,
    latent: ir.Value,
    shared_key: ir.Value,
    index_q: ir.Value,
    index_key: ir.Value,
    index_weights: ir.Value,
) -> ir.Value:
    """Scores in float32 over the rows in use; expanded under the mask of the best for many tokens, absorbed over them for one."""
    op = node.op
    assert isinstance(op, SparseLatentAttention)
    query = Query(ctx, op, q)
    rows = ctx.op("Unsqueeze", ctx.op("Concat", latent, shared_key, axis=-1), ctx.ints(1))
    cache = append(ctx, node, "latent", rows)
    index_cache = append(ctx, node, "index_key", ctx.op("Unsqueeze", index_key, ctx.ints(1)))
    all_rows = capacity_rows(ctx, cache)
    ctx.note(
        f"index scores in float32 and TopK; If(seq > 1): keys and values expanded from the used rows under the mask of "
        f"{op.topk} a query, else {op.topk} rows gathered and the projection absorbed into query and output"
    )

    def many() -> tuple[ir.Value]:
        # A multiple of 8 rows, because CUDA's memory-efficient kernel wants a multiple of 4 under a mask.
        end = used_rows(ctx, all_rows)

        def used(x: ir.Value) -> ir.Value:
            return ctx.op("Slice", x, ctx.ints(0), end, ctx.ints(2))

        scores = index_scores(ctx, op, index_q, index_weights, used(index_cache))
        best, places = best_keys(ctx, op.topk, scores, used(all_rows), positions(ctx))
        shape = ctx.op("Shape", scores, dtype=ir.DataType.INT64)
        closed = ctx.filled(shape, lowest(ctx), ctx.dtype)
        mask = ctx.op("ScatterElements", closed, places, mask_of_best(ctx, best), axis=-1)
        mask = ctx.op("Reshape", mask, ctx.ints(0, 1, -1, 0))
        return (expanded(ctx, node, op, query, used(cache), mask),)

    def one() -> tuple[ir.Value]:
        scores = index_scores(ctx, op, index_q, index_weights, used_part(ctx, index_cache))
        best, places = best_keys(ctx, op.topk, scores, used_part(ctx, all_rows), past_column(ctx))
        taken = ctx.op("GatherND", cache, ctx.op("Reshape", places, ctx.ints(0, 1, -1, 1)), batch_dims=2)
        return (absorbed(ctx, node, op, query, taken, mask_of_best(ctx, best)),)

    o = ctx.choose(is_many(ctx), many, one, (ctx.dtype,))[0]
    return from_heads(ctx, o, op.num_heads * op.value_dim)


def index_scores(ctx: Lowering, op: Indexed, index_q: ir.Value, weights: ir.Value, keys: ir.Value) -> ir.Value:
    """``sum_i w_i relu(q_i k)`` of keys (batch, 1, T, D), float32 (batch, seq, 1, T)."""
    q = ctx.cast(ctx.op("Reshape", index_q, ctx.ints(0, 1, -1, op.index_dim)), ir.DataType.FLOAT)
    # Heads of all tokens are rows of one product; T is the last dimension before and after.
    products = ctx.op("FusedMatMul", q, ctx.cast(keys, ir.DataType.FLOAT), domain=MS, transB=1)
    products = ctx.op("Reshape", ctx.op("Relu", products), ctx.ints(0, -1, op.index_heads, 0))
    return ctx.op("MatMul", ctx.cast(ctx.op("Unsqueeze", weights, ctx.ints(2)), ir.DataType.FLOAT), products)


def best_keys(ctx: Lowering, topk: int, scores: ir.Value, rows: ir.Value, at: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(scores, places) of the keys that tokens at positions (batch, seq) choose among ``rows`` (1, 1, T), (batch, seq, 1, C).

    C is topk, or T where that is less; keys that a token does not see fill up.
    """
    seen = ctx.op("LessOrEqual", rows, ctx.op("Unsqueeze", at, ctx.ints(2)), dtype=ir.DataType.BOOL)
    unseen = ctx.scalar(UNSEEN, ir.DataType.FLOAT)
    scores = ctx.op("Where", ctx.op("Unsqueeze", seen, ctx.ints(2)), scores, unseen, dtype=ir.DataType.FLOAT)
    # Read off a shape, which lives on the host, where TopK wants it.
    first = ctx.op("Slice", rows, ctx.ints(0), ctx.ints(topk), ctx.ints(2))
    count = ctx.op("Shape", first, dtype=ir.DataType.INT64, start=2, end=3)
    best, places = ctx.ops("TopK", scores, count, dtypes=(None, ir.DataType.INT64), axis=-1, sorted=0)
    return best, places


def mask_of_best(ctx: Lowering, best: ir.Value) -> ir.Value:
    """0 for scores of keys that are seen, the lowest useful number for others, in the model's dtype."""
    seen = ctx.op("Greater", best, ctx.scalar(UNSEEN, ir.DataType.FLOAT), dtype=ir.DataType.BOOL)
    return ctx.op("Where", seen, ctx.scalar(0.0), ctx.scalar(lowest(ctx)), dtype=ctx.dtype)
