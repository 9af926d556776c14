"""Mixture of experts: the router in float32, the experts as one MoE node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import moe as ops
from archc.ops.elementwise import GatedActivation
from archc_exporters.onnx.context import KEEP_FLOAT, MS, Lowering
from archc_exporters.onnx.elementwise import activate, gated
from archc_exporters.onnx.transforms import Parts, Transposed
from archc_exporters.onnx.weights import Array

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
UNCHOSEN = -1e4
"""Router logit of an expert that is not chosen: exp of it is 0 in every dtype, and float16 holds it."""
FUSED_GATED, FUSED_PLAIN = ("silu",), ("relu", "silu")
"""Activations that onnxruntime's MoE node computes exactly, by the graph's names; its gelu is an approximation."""
SMALLEST = 1e-20
"""Keeps a weight of 0 out of the logarithm, and a sum of 0 out of a denominator."""


def route(ctx: Lowering, node: Node, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Scores, choice and weights in float32: (indices int64, weights float32), both (batch, seq, k)."""
    op = node.op
    assert isinstance(op, ops.Route)
    inner = node.inputs[0].width
    ctx.note("scores, TopK and weights by standard ops in float32: MoE's own routing knows softmax only")
    weight = ctx.weight(
        node, "weight", tag="transposed", shape=(inner, op.num_experts), dtype=FLOAT, transform=Transposed()
    )
    weight.meta[KEEP_FLOAT] = "a router, whose choice of experts a rounded score would change"
    logits = ctx.op("MatMul", ctx.cast(x, FLOAT), weight)
    if op.bias:
        logits = ctx.op("Add", logits, ctx.weight(node, "bias", dtype=FLOAT))
    scores = _scores(ctx, logits, op.scoring_func)
    choice = scores
    if op.correction_bias:
        choice = ctx.op("Add", scores, ctx.weight(node, "e_score_correction_bias"))
    if op.n_group > op.topk_group:
        choice = _within_groups(ctx, choice, op)
    _, indices = _top(ctx, choice, op.top_k)
    weights = ctx.op("GatherElements", scores, indices, axis=-1)
    if op.norm_topk_prob:
        total = ctx.op("ReduceSum", weights, ctx.ints(-1), keepdims=1)
        weights = ctx.op("Div", weights, ctx.op("Max", total, ctx.scalar(SMALLEST, FLOAT)))
    if op.routed_scaling_factor != 1.0:
        weights = ctx.op("Mul", weights, ctx.scalar(op.routed_scaling_factor, FLOAT))
    return indices, weights


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
    grouped = ctx.op("Reshape", choice, ctx.ints(0, 0, groups, size))
    # TopK serves for the maximum too: ReduceMax would need cuDNN.
    best, _ = _top(ctx, grouped, 1 if op.group_score == "max" else min(2, size))
    score = ctx.op("ReduceSum", best, ctx.ints(-1), keepdims=0)
    _, kept = _top(ctx, score, op.topk_group)
    # Ones where a group is kept, in the shapes of the run: 0 x + 1 over the indices, scattered into 0 x over the scores.
    zero, one = (ctx.scalar(number, INT64) for number in (0, 1))
    marks = ctx.op("Add", ctx.op("Mul", kept, zero), one)
    none = ctx.filled(ctx.op("Shape", score, dtype=INT64), 0, INT64)
    inside = ctx.cast(ctx.op("ScatterElements", none, kept, marks, axis=-1), ir.DataType.BOOL)
    lowest = ctx.scalar(-float(np.finfo(np.float32).max), FLOAT)
    masked = ctx.op("Where", ctx.op("Unsqueeze", inside, ctx.ints(3)), grouped, lowest, dtype=FLOAT)
    return ctx.op("Reshape", masked, ctx.ints(0, 0, op.num_experts))


def _top(ctx: Lowering, x: ir.Value, count: int) -> list[ir.Value]:
    """(values, indices) of the largest of the last dimension."""
    return ctx.ops("TopK", x, ctx.ints(count), dtypes=(None, INT64), axis=-1)


def experts(ctx: Lowering, node: Node, x: ir.Value, indices: ir.Value, weights: ir.Value) -> ir.Value:
    """One MoE node where its activation can be said, every expert for every token elsewhere."""
    op = node.op
    assert isinstance(op, ops.Experts)
    width, k = node.inputs[0].width, op.top_k
    rows = ctx.op("Reshape", x, ctx.ints(-1, width))
    chosen = ctx.op("Reshape", indices, ctx.ints(-1, k))
    shares = ctx.op("Reshape", weights, ctx.ints(-1, k))
    on_input = op.weight_on == "input"
    if on_input:
        # Each (token, expert) pair becomes a row of its own, already weighted, with one expert of weight 1.
        column = ctx.cast(ctx.op("Unsqueeze", shares, ctx.ints(2)), ctx.dtype)
        rows = ctx.op("Reshape", ctx.op("Mul", ctx.op("Unsqueeze", rows, ctx.ints(1)), column), ctx.ints(-1, width))
        chosen, shares = ctx.op("Reshape", chosen, ctx.ints(-1, 1)), None
    if op.activation.function in (FUSED_GATED if op.gated else FUSED_PLAIN):
        y = _fused(ctx, node, op, rows, chosen, shares)
    else:
        y = _every_expert(ctx, node, op, rows, chosen, shares)
    if on_input and k > 1:
        ones = ctx.filled(ctx.ints(1, k), 1.0, ctx.dtype)
        y = ctx.op("MatMul", ones, ctx.op("Reshape", y, ctx.ints(-1, k, width)))
    return ctx.op("Reshape", y, ctx.op("Shape", x, dtype=INT64))


def _fused(
    ctx: Lowering, node: Node, op: ops.Experts, rows: ir.Value, chosen: ir.Value, shares: ir.Value | None
) -> ir.Value:
    """MoE normalises by a softmax over its top k; over logarithms of the weights that is weight / sum, then times the sum."""
    if shares is None:
        ctx.note("MoE over (token, expert) rows with k = 1: the weight stands on the input")
        logits, total, k = ctx.cast(ctx.op("Mul", chosen, ctx.scalar(0, INT64)), ctx.dtype), None, 1
    else:
        ctx.note("MoE with logarithms of the weights as router logits: any router's weights, exactly")
        total, k = ctx.op("ReduceSum", shares, ctx.ints(-1), keepdims=1), op.top_k
        # Shares of the sum, so that the logarithms are small and keep their digits in 16 bits.
        smallest = ctx.scalar(SMALLEST, FLOAT)
        share = ctx.op("Div", shares, ctx.op("Max", total, smallest))
        logits = ctx.cast(ctx.op("Log", ctx.op("Max", share, smallest)), ctx.dtype)
    router = _scattered(ctx, op, chosen, logits, UNCHOSEN)

    first, first_bias, numbers = _first_layer(ctx, node, op)
    y = ctx.op(
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
    return y if total is None else ctx.op("Mul", y, ctx.cast(total, ctx.dtype))


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
    share = _scattered(ctx, op, chosen, ctx.cast(shares, ctx.dtype), 0.0)

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


def _scattered(ctx: Lowering, op: ops.Experts, chosen: ir.Value, numbers: ir.Value, elsewhere: float) -> ir.Value:
    """Numbers (rows, k) at the chosen experts of (rows, num_experts), ``elsewhere`` at the others."""
    rows = ctx.op("Shape", chosen, dtype=INT64, start=0, end=1)
    base = ctx.filled(ctx.op("Concat", rows, ctx.ints(op.num_experts), axis=0), elsewhere, ctx.dtype)
    return ctx.op("ScatterElements", base, chosen, numbers, axis=1)
