"""Which experts a token goes to, and with what weights: scores, groups and choice by standard ops in float32.

MoE's own routing knows a softmax and no more, and the choice of experts must not hang on the rounding of 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import moe as ops
from archc.ops.token_table import TokenTable
from archc_exporters.onnx.context import KEEP_FLOAT, Lowering
from archc_exporters.onnx.transforms import Transposed

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
ROUTING = "archc.routing"
"""Mark on a router's indices: what it knows of its choice beside them, a ``Routing``."""
SMALLEST = 1e-20
"""Keeps a sum of 0 out of a denominator."""


@dataclass(frozen=True)
class Routing:
    """A choice by rows, (batch x seq, …), which the experts read.

    Attributes:
        indices: int64 (rows, k).
        scores: of the chosen experts before they are normalised and scaled, float32 (rows, k).
        weights: what multiplies the experts, float32 (rows, k).
        factor: weights are ``factor`` times scores over their sum; None where scores are not normalised.
        logits: float32 (rows, E) whose softmax over the chosen ones gives those shares, and whose largest are the chosen;
            None where there are none.
    """

    indices: ir.Value
    scores: ir.Value
    weights: ir.Value
    factor: float | None = None
    logits: ir.Value | None = None


def routing_of(ctx: Lowering, indices: ir.Value, weights: ir.Value, top_k: int) -> Routing:
    """What the router behind two values (batch, seq, k) said, or the values by rows where it is no router of ours."""
    known = indices.meta.get(ROUTING)
    if isinstance(known, Routing):
        return known
    flat = ctx.op("Reshape", weights, ctx.ints(-1, top_k))
    return Routing(ctx.op("Reshape", indices, ctx.ints(-1, top_k)), flat, flat)


def route(ctx: Lowering, node: Node, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Scores, choice and weights in float32: (indices int64, weights float32), both (batch, seq, k)."""
    op = node.op
    assert isinstance(op, ops.Route)
    ctx.note("scores, TopK and weights by standard ops in float32: MoE's own routing knows softmax only")
    logits = _logits(ctx, node, op, x)
    scores = _scores(ctx, logits, op.scoring_func)
    choice = scores
    if op.correction_bias:
        choice = ctx.op("Add", scores, ctx.weight(node, "e_score_correction_bias"))
    grouped = op.n_group > op.topk_group
    if grouped:
        choice = _within_groups(ctx, choice, op)
    _, indices = top(ctx, choice, op.top_k)
    plain = op.norm_topk_prob and op.scoring_func == "softmax" and not op.correction_bias and not grouped
    return _weighed(ctx, op, scores, indices, logits if plain else None)


def token_table(ctx: Lowering, node: Node, x: ir.Value, ids: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The same for experts that a table has for a token's id."""
    op = node.op
    assert isinstance(op, TokenTable)
    ctx.note("Gather of each id's experts; scores and weights by standard ops in float32")
    scores = _scores(ctx, _logits(ctx, node, op, x), op.scoring_func)
    indices = ctx.op("Gather", ctx.weight(node, "table"), ids, axis=0)
    return _weighed(ctx, op, scores, ctx.op("Reshape", indices, ctx.ints(-1, op.top_k)), None)


def _logits(ctx: Lowering, node: Node, op: ops.Route | TokenTable, x: ir.Value) -> ir.Value:
    """Float32 (rows, E)."""
    inner = node.inputs[0].width
    weight = ctx.weight(
        node, "weight", tag="transposed", shape=(inner, op.num_experts), dtype=FLOAT, transform=Transposed()
    )
    weight.meta[KEEP_FLOAT] = "a router, whose choice of experts a rounded score would change"
    logits = ctx.op("MatMul", ctx.cast(x, FLOAT), weight)
    if isinstance(op, ops.Route) and op.bias:
        logits = ctx.op("Add", logits, ctx.weight(node, "bias", dtype=FLOAT))
    return ctx.op("Reshape", logits, ctx.ints(-1, op.num_experts))


def _weighed(
    ctx: Lowering, op: ops.Route | TokenTable, scores: ir.Value, indices: ir.Value, logits: ir.Value | None
) -> tuple[ir.Value, ir.Value]:
    """(indices, weights) (batch, seq, k) of scores (rows, E) and the indices of the chosen, with the mark for experts."""
    chosen = ctx.op("GatherElements", scores, indices, axis=-1)
    weights = chosen
    if op.norm_topk_prob:
        weights = normalised(ctx, weights)
    if op.routed_scaling_factor != 1.0:
        weights = ctx.op("Mul", weights, ctx.scalar(op.routed_scaling_factor, FLOAT))
    routing = Routing(
        indices,
        chosen,
        weights,
        factor=op.routed_scaling_factor if op.norm_topk_prob else None,
        logits=logits,
    )
    shape = by_token(ctx, op.top_k)
    results = ctx.op("Reshape", indices, shape), ctx.op("Reshape", weights, shape)
    results[0].meta[ROUTING] = routing
    return results


def normalised(ctx: Lowering, weights: ir.Value) -> ir.Value:
    """Weights (rows, k) over their sum."""
    total = ctx.op("ReduceSum", weights, ctx.ints(-1), keepdims=1)
    return ctx.op("Div", weights, ctx.op("Max", total, ctx.scalar(SMALLEST, FLOAT)))


def row_count(ctx: Lowering) -> ir.Value:
    """batch x seq, int64 [1], on the host."""

    def make() -> ir.Value:
        batch, seq = (ctx.op("Shape", ctx.inputs["input_ids"], dtype=INT64, start=at, end=at + 1) for at in (0, 1))
        return ctx.op("Mul", batch, seq)

    return ctx.shared("row count", make)


def rows_of(ctx: Lowering, width: int, number: float, dtype: ir.DataType, *, times: int = 1) -> ir.Value:
    """(batch x seq x times, width), all one number; every layer reads the same."""

    def make() -> ir.Value:
        rows = row_count(ctx)
        if times != 1:
            rows = ctx.op("Mul", rows, ctx.ints(times))
        return ctx.filled(ctx.op("Concat", rows, ctx.ints(width), axis=0), number, dtype)

    return ctx.shared(("rows of", width, number, dtype, times), make)


def top(ctx: Lowering, x: ir.Value, count: int) -> list[ir.Value]:
    """(values, indices) of the largest of the last dimension."""
    return ctx.ops("TopK", x, ctx.ints(count), dtypes=(None, INT64), axis=-1)


def _scores(ctx: Lowering, logits: ir.Value, function: str) -> ir.Value:
    match function:
        case "softmax":
            return ctx.op("Softmax", logits, axis=-1)
        case "sigmoid":
            return ctx.op("Sigmoid", logits)
        case "sqrtsoftplus":
            return ctx.op("Sqrt", ctx.op("Softplus", logits))
        case _:
            raise AssertionError(f"the graph knows a score {function} that this exporter does not")


def _within_groups(ctx: Lowering, choice: ir.Value, op: ops.Route) -> ir.Value:
    """The choice with experts of all but the best groups out of reach."""
    groups, size = op.n_group, op.num_experts // op.n_group
    grouped = ctx.op("Reshape", choice, ctx.ints(-1, groups, size))
    # TopK serves for the maximum too: ReduceMax would need cuDNN.
    best, _ = top(ctx, grouped, 1 if op.group_score == "max" else min(2, size))
    score = ctx.op("ReduceSum", best, ctx.ints(-1), keepdims=0)
    _, kept = top(ctx, score, op.topk_group)
    # Half of the range, so that a score added to it stays finite and equal to it.
    out_of_reach = -float(np.finfo(np.float32).max) / 2
    gate = ctx.op(
        "ScatterElements",
        rows_of(ctx, groups, out_of_reach, FLOAT),
        kept,
        rows_of(ctx, op.topk_group, 0.0, FLOAT),
        axis=-1,
    )
    masked = ctx.op("Add", grouped, ctx.op("Unsqueeze", gate, ctx.ints(2)))
    return ctx.op("Reshape", masked, ctx.ints(-1, op.num_experts))


def by_token(ctx: Lowering, width: int) -> ir.Value:
    """The shape (batch, seq, width)."""

    def make() -> ir.Value:
        tokens = ctx.op("Shape", ctx.inputs["input_ids"], dtype=INT64)
        return ctx.op("Concat", tokens, ctx.ints(width), axis=0)

    return ctx.shared(("by token", width), make)
