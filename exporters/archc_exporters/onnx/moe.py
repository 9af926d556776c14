"""Experts as one MoE node, which is told by its router logits what the router has chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import moe as ops
from archc.ops.elementwise import GatedActivation
from archc_exporters.onnx.context import KEEP_FLOAT, MS, Lowering
from archc_exporters.onnx.elementwise import activate, gated
from archc_exporters.onnx.routing import SMALLEST, Routing, by_token, normalised, routing_of, rows_of
from archc_exporters.onnx.transforms import Parts, Transposed
from archc_exporters.onnx.weights import Array

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
UNCHOSEN = -1e4
"""Router logit of an expert that is not chosen: exp of it is 0 in every dtype, and float16 holds it."""
FUSED_GATED, FUSED_PLAIN = ("silu",), ("relu", "silu")
"""Activations that onnxruntime's MoE node computes exactly, by the graph's names; its gelu is an approximation."""


def experts(ctx: Lowering, node: Node, x: ir.Value, indices: ir.Value, weights: ir.Value) -> ir.Value:
    """One MoE node where its activation can be said, every expert for every token elsewhere."""
    op = node.op
    assert isinstance(op, ops.Experts)
    routing = routing_of(ctx, indices, weights, op.top_k)
    is_fused = op.activation.function in (FUSED_GATED if op.gated else FUSED_PLAIN)
    if op.weight_on == "input":
        return _weighted_on_input(ctx, node, op, x, routing, is_fused=is_fused)
    if not is_fused:
        rows = ctx.op("Reshape", x, ctx.ints(-1, node.inputs[0].width))
        y = _every_expert(ctx, node, op, rows, routing.indices, routing.weights)
        return ctx.op("Reshape", y, ctx.op("Shape", x, dtype=INT64))
    router, after = _router_logits(ctx, op, routing)
    y = _fused(ctx, node, op, x, router, op.top_k)
    return y if after is None else ctx.op("Mul", y, after)


def _weighted_on_input(
    ctx: Lowering, node: Node, op: ops.Experts, x: ir.Value, routing: Routing, *, is_fused: bool
) -> ir.Value:
    """Each (token, expert) pair becomes a row of its own, already weighted, with one expert of weight 1."""
    width, k = node.inputs[0].width, op.top_k
    column = ctx.cast(ctx.op("Unsqueeze", routing.weights, ctx.ints(2)), ctx.dtype)
    tokens = ctx.op("Reshape", x, ctx.ints(-1, 1, width))
    rows = ctx.op("Reshape", ctx.op("Mul", tokens, column), ctx.ints(-1, width))
    chosen = ctx.op("Reshape", routing.indices, ctx.ints(-1, 1))
    if is_fused:
        ctx.note("MoE over (token, expert) rows with k = 1: the weight stands on the input")
        router = ctx.op(
            "ScatterElements",
            rows_of(ctx, op.num_experts, UNCHOSEN, ctx.dtype, times=k),
            chosen,
            rows_of(ctx, 1, 0.0, ctx.dtype, times=k),
            axis=1,
        )
        y = _fused(ctx, node, op, rows, router, 1)
    else:
        y = _every_expert(ctx, node, op, rows, chosen, None)
    if k > 1:
        ones = ctx.filled(ctx.ints(1, k), 1.0, ctx.dtype)
        y = ctx.op("MatMul", ones, ctx.op("Reshape", y, ctx.ints(-1, k, width)))
    return ctx.op("Reshape", y, ctx.op("Shape", x, dtype=INT64))


def _router_logits(ctx: Lowering, op: ops.Experts, routing: Routing) -> tuple[ir.Value, ir.Value | None]:
    """(what MoE takes for router logits, (rows, E); what its output is multiplied by, None for nothing).

    MoE normalises by a softmax over its top k; over logarithms that is score / sum of scores.
    """
    if routing.logits is not None and routing.factor is not None and ctx.target.form_dtype == "float32":
        ctx.note("MoE with the router's own logits: a softmax over the chosen ones is what it computes")
        return routing.logits, _factor(ctx, routing.factor)
    ctx.note("MoE with logarithms of the weights as router logits: any router's weights, exactly")
    after, scores = None, routing.scores
    if routing.factor is not None:
        after = _factor(ctx, routing.factor)
    else:
        total = ctx.op("ReduceSum", routing.weights, ctx.ints(-1), keepdims=1)
        after = ctx.op("Reshape", ctx.cast(total, ctx.dtype), by_token(ctx, 1))
    if ctx.target.form_dtype != "float32":
        # Shares of the sum, so that the logarithms are small and keep their digits in 16 bits.
        scores = normalised(ctx, scores)
    logits = ctx.cast(ctx.op("Log", ctx.op("Max", scores, ctx.scalar(SMALLEST, FLOAT))), ctx.dtype)
    base = rows_of(ctx, op.num_experts, UNCHOSEN, ctx.dtype)
    return ctx.op("ScatterElements", base, routing.indices, logits, axis=1), after


def _factor(ctx: Lowering, factor: float) -> ir.Value | None:
    return None if factor == 1.0 else ctx.scalar(factor)


def _fused(ctx: Lowering, node: Node, op: ops.Experts, rows: ir.Value, router: ir.Value, k: int) -> ir.Value:
    first, first_bias, numbers = _first_layer(ctx, node, op)
    return ctx.op(
        "MoE",
        rows,
        router,
        first,
        first_bias,
        ctx.weight(node, "down_proj"),
        ctx.weight(node, "down_proj_bias") if op.bias else None,
        domain=MS,
        k=k,
        # 0 gives wrong numbers on the CPU of onnxruntime 1.31.
        normalize_routing_weights=1,
        **numbers,
    )


def _first_layer(ctx: Lowering, node: Node, op: ops.Experts) -> tuple[ir.Value, ir.Value | None, dict[str, Any]]:
    """MoE's first weight and bias, and the attributes that say what follows them."""
    act = op.activation
    if not isinstance(act, GatedActivation):
        bias = ctx.weight(node, "up_proj_bias") if op.bias else None
        return ctx.weight(node, "up_proj"), bias, {"activation_type": act.function}
    count, inner = op.num_experts, op.intermediate_size

    def interleaved(gate: Array, up: Array) -> Array:
        # Rows g0, u0, g1, u1, …: the one layout that both of onnxruntime's kernels take.
        return np.stack((gate, up), 2).reshape(-1, 2 * inner, *gate.shape[2:])

    shape, bias = (count, 2 * inner, node.inputs[0].width), None
    first = ctx.weight(node, "gate_proj", "up_proj", tag="gate_up", shape=shape, transform=Parts(interleaved, count))
    if op.bias:
        roles = ("gate_proj_bias", "up_proj_bias")
        bias = ctx.weight(node, *roles, tag="gate_up", shape=shape[:2], transform=interleaved)
    numbers: dict[str, Any] = {"activation_alpha": act.alpha, "activation_beta": act.up_offset}
    if act.limit is not None:
        numbers["swiglu_limit"] = act.limit
    return first, bias, {"activation_type": "swiglu", "swiglu_fusion": 1, **numbers}


def _every_expert(
    ctx: Lowering, node: Node, op: ops.Experts, rows: ir.Value, chosen: ir.Value, shares: ir.Value | None
) -> ir.Value:
    """All experts as one wide feed-forward whose inner channels are weighted by their expert's share."""
    act = op.activation
    form = f"{'gated' if op.gated else 'plain'} {act.function}"
    ctx.note(f"every expert for every token: MoE has no {form}, so this costs num_experts / k more")
    count, inner, width = op.num_experts, op.intermediate_size, node.inputs[0].width
    wide = count * inner
    if shares is None:
        shares = ctx.op("Add", ctx.op("Mul", ctx.cast(chosen, FLOAT), ctx.scalar(0.0, FLOAT)), ctx.scalar(1.0, FLOAT))
    # Zeros in the shape of the rows at hand: there are more of them than tokens where the weight stands on the input.
    rows_at_hand = ctx.op("Concat", ctx.op("Shape", chosen, dtype=INT64, start=0, end=1), ctx.ints(count), axis=0)
    nowhere = ctx.filled(rows_at_hand, 0.0, ctx.dtype)
    share = ctx.op("ScatterElements", nowhere, chosen, ctx.cast(shares, ctx.dtype), axis=1)

    def out_of(weight: Array) -> Array:
        return weight.transpose(0, 2, 1).reshape(-1, width)

    branches: list[ir.Value] = []
    for role in ("gate_proj", "up_proj") if op.gated else ("up_proj",):
        y = ctx.op("MatMul", rows, ctx.weight(node, role, tag="wide", shape=(width, wide), transform=Transposed()))
        if op.bias:
            flat = ctx.weight(node, f"{role}_bias", tag="wide", shape=(wide,), transform=lambda b: b.reshape(-1))
            y = ctx.op("Add", y, flat)
        branches.append(y)
    middle = (
        gated(ctx, branches[0], branches[1], act)
        if isinstance(act, GatedActivation)
        else activate(ctx, branches[0], act.function)
    )
    h = ctx.op("Reshape", middle, ctx.ints(-1, count, inner))
    h = ctx.op("Reshape", ctx.op("Mul", h, ctx.op("Unsqueeze", share, ctx.ints(2))), ctx.ints(-1, wide))
    y = ctx.op(
        "MatMul", h, ctx.weight(node, "down_proj", tag="wide", shape=(wide, width), transform=Parts(out_of, count))
    )
    if not op.bias:
        return y
    biases = ctx.weight(node, "down_proj_bias")
    biases.meta[KEEP_FLOAT] = "biases of experts"
    return ctx.op("Add", y, ctx.op("MatMul", share, biases))
