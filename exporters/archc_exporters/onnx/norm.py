"""Norms. onnxruntime computes each of them in float32 and returns the input's dtype."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import norm as ops
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.elementwise import activate
from archc_exporters.onnx.weights import NUMPY_DTYPES, Array

WHOLE_WIDTH = "RMSNormalization"
"""The form of a norm over the whole width, until it is joined with the sum before it."""

L2_NORMED = "archc.l2_normed"
"""Mark on what an L2 norm gives: (its input, the width, the op)."""


def rms_norm(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """RMSNormalization over the width, or over each head of it; an offset is added to the weight when it is written."""
    op = node.op
    assert isinstance(op, ops.RMSNorm)
    width = node.inputs[0].width
    if op.weight:
        weight = _rms_weight(ctx, node, op)
    else:
        weight = ctx.constant(np.ones(op.head_dim or width, NUMPY_DTYPES[ctx.dtype]))
    ctx.note(WHOLE_WIDTH if op.head_dim is None else "RMSNormalization between two Reshapes, a head at a time")
    return _per_head(ctx, x, [weight], width, op.head_dim, op.eps)


def layer_norm(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """LayerNormalization over the width, or over each head of it; onnxruntime itself joins it with the sum before it."""
    op, name = node.op, "LayerNormalization"
    assert isinstance(op, ops.LayerNorm)
    ctx.note(name if op.head_dim is None else f"{name} between two Reshapes, a head at a time")
    weights = [ctx.weight(node, role) for role in node.params]
    return _per_head(ctx, x, weights, node.inputs[0].width, op.head_dim, op.eps, op_type=name)


def gated_norm(ctx: Lowering, node: Node, x: ir.Value, gate: ir.Value) -> ir.Value:
    """GatedRMSNorm on CUDA where it knows the gate's function, else the norm times the activated gate.

    On the CPU its kernel is scalar code, fifty times slower over a prompt than the ops that it stands for.
    """
    op = node.op
    assert isinstance(op, ops.GatedNorm)
    weight = ctx.weight(node, "weight")
    on_cpu = ctx.target.provider == "cpu"
    if op.function in ("sigmoid", "silu") and not on_cpu:
        ctx.note("GatedRMSNorm: norm, weight and gate in one kernel")
        return ctx.op("GatedRMSNorm", x, weight, gate, domain=MS, epsilon=op.eps, activation=op.function)
    why = "GatedRMSNorm is slow on the CPU" if on_cpu else f"GatedRMSNorm has no {op.function}"
    ctx.note(f"RMSNormalization and Mul: {why}")
    y = _per_head(ctx, x, [weight], node.inputs[0].width, op.head_dim, op.eps)
    return ctx.op("Mul", y, activate(ctx, gate, op.function))


def gated_group_norm(ctx: Lowering, node: Node, x: ir.Value, gate: ir.Value) -> ir.Value:
    """The gated value through RMSNormalization; with several groups over each of them without weights, then the weight."""
    op = node.op
    assert isinstance(op, ops.GatedGroupNorm)
    width = node.inputs[0].width
    y = ctx.op("Mul", x, activate(ctx, gate, op.function))
    if op.groups == 1:
        ctx.note("Mul and RMSNormalization: GatedRMSNorm gates behind its norm")
        return ctx.op("RMSNormalization", y, ctx.weight(node, "weight"), axis=-1, epsilon=op.eps)
    ctx.note(
        "Mul, RMSNormalization between two Reshapes, a group at a time, and Mul: each group has weights of its own"
    )
    ones = ctx.constant(np.ones(width // op.groups, NUMPY_DTYPES[ctx.dtype]))
    return ctx.op("Mul", _per_head(ctx, y, [ones], width, width // op.groups, op.eps), ctx.weight(node, "weight"))


def l2_norm(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """An RMS norm with weight 1/sqrt(d) and epsilon eps/d is exactly x / sqrt(sum x^2 + eps)."""
    op = node.op
    assert isinstance(op, ops.L2Norm)
    ctx.note("RMSNormalization with weight 1/sqrt(d) and epsilon eps/d: LpNormalization has no epsilon")
    y = _l2(ctx, x, node.inputs[0].width, op)
    y.meta[L2_NORMED] = (x, node.inputs[0].width, op)
    return y


def l2_normed_in_float(ctx: Lowering, y: ir.Value) -> ir.Value:
    """The value in float32; where it is an L2 norm that is computed in float32 too, not rounded before."""
    mark = y.meta.get(L2_NORMED)
    if mark is None or ctx.dtype == ir.DataType.FLOAT:
        return ctx.cast(y, ir.DataType.FLOAT)
    x, width, op = mark
    return _l2(ctx, ctx.cast(x, ir.DataType.FLOAT), width, op)


def _l2(ctx: Lowering, x: ir.Value, width: int, op: ops.L2Norm) -> ir.Value:
    assert x.dtype is not None
    weight = ctx.constant(np.full(op.head_dim, op.head_dim**-0.5, NUMPY_DTYPES[x.dtype]))
    return _per_head(ctx, x, [weight], width, op.head_dim, op.eps / op.head_dim)


def _rms_weight(ctx: Lowering, node: Node, op: ops.RMSNorm) -> ir.Value:
    if op.weight_offset == 0.0:
        return ctx.weight(node, "weight")

    def shifted(weight: Array) -> Array:
        return weight.astype(np.float32) + np.float32(op.weight_offset)

    return ctx.weight(node, "weight", tag="shifted", transform=shifted)


def _per_head(
    ctx: Lowering,
    x: ir.Value,
    weights: Sequence[ir.Value],
    width: int,
    head_dim: int | None,
    eps: float,
    *,
    op_type: str = "RMSNormalization",
) -> ir.Value:
    if head_dim is None or head_dim == width:
        return ctx.op(op_type, x, *weights, axis=-1, epsilon=eps)
    heads = ctx.op("Reshape", x, ctx.ints(0, 0, width // head_dim, head_dim))
    return ctx.op("Reshape", ctx.op(op_type, heads, *weights, axis=-1, epsilon=eps), ctx.ints(0, 0, width))
