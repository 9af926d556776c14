"""Ops without weights: sums, products, activations, splits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import elementwise as ops
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.fuse import SAME_SHAPE
from archc_exporters.onnx.weights import NUMPY_DTYPES


def activate(ctx: Lowering, x: ir.Value, function: str, *, alpha: float = 1.0) -> ir.Value:
    """An elementwise function by the graph's name for it; ``alpha`` is silu's."""
    match function:
        case "silu":
            return ctx.op("QuickGelu", x, domain=MS, alpha=alpha)
        case "sigmoid":
            return ctx.op("Sigmoid", x)
        case "gelu":
            return ctx.op("Gelu", x)
        case "gelu_tanh":
            return ctx.op("Gelu", x, approximate="tanh")
        case "relu":
            return ctx.op("Relu", x)
        case "relu2":
            positive = ctx.op("Relu", x)
            return ctx.op("Mul", positive, positive)
        case "tanh":
            return ctx.op("Tanh", x)
        case "softplus":
            return ctx.op("Softplus", x)
        case "elu_plus_one":
            below = ctx.op("Exp", ctx.op("Min", x, ctx.scalar(0.0, x.dtype)))
            return ctx.op("Add", ctx.op("Relu", x), below)
        case _:
            raise AssertionError(f"the graph knows an activation {function} that this exporter does not")


def clamped(ctx: Lowering, x: ir.Value, low: float | None, high: float) -> ir.Value:
    """x within [low, high]; no lower bound where it is None. Min and Max, because CUDA's Clip has no bfloat16."""
    y = ctx.op("Min", x, ctx.scalar(high, x.dtype))
    return y if low is None else ctx.op("Max", y, ctx.scalar(low, x.dtype))


def gated(ctx: Lowering, gate: ir.Value, up: ir.Value, gating: ops.GatedActivation) -> ir.Value:
    """``act(alpha gate) gate (up + up_offset)``, both branches clamped where the gating says so; situ caps both softly."""
    if gating.beta is not None:
        up = up if gating.linear_beta is None else soft_capped(ctx, up, gating.linear_beta)
        return ctx.op("Mul", ctx.op("Mul", soft_capped(ctx, gate, gating.beta), ctx.op("Sigmoid", gate)), up)
    if gating.limit is not None:
        gate, up = clamped(ctx, gate, None, gating.limit), clamped(ctx, up, -gating.limit, gating.limit)
    if gating.up_offset:
        up = ctx.op("Add", up, ctx.scalar(gating.up_offset, up.dtype))
    return ctx.op("Mul", activate(ctx, gate, gating.function, alpha=gating.alpha), up)


def add(ctx: Lowering, node: Node, left: ir.Value, right: ir.Value) -> ir.Value:
    y = ctx.op("Add", *_alike(ctx, node, left, right))
    producer = y.producer()
    assert producer is not None
    producer.meta[SAME_SHAPE] = node.inputs[0].shape == node.inputs[1].shape
    return y


def mul(ctx: Lowering, node: Node, left: ir.Value, right: ir.Value) -> ir.Value:
    return ctx.op("Mul", *_alike(ctx, node, left, right))


def scale(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    assert isinstance(node.op, ops.Scale)
    return ctx.op("Mul", x, ctx.scalar(node.op.factor, x.dtype))


def activation(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    assert isinstance(node.op, ops.Activation)
    return activate(ctx, x, node.op.function)


def gated_activation(ctx: Lowering, node: Node, gate: ir.Value, up: ir.Value) -> ir.Value:
    """QuickGelu is gate sigmoid(alpha gate) in one kernel; the fused SwiGLU needs a newer onnxruntime."""
    assert isinstance(node.op, ops.GatedActivation)
    if node.op.function == "silu":
        ctx.note("QuickGelu and Mul: com.microsoft SwiGLU needs onnxruntime 1.32")
    return gated(ctx, gate, up, node.op)


def soft_cap(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    assert isinstance(node.op, ops.SoftCap)
    return soft_capped(ctx, x, node.op.cap)


def soft_capped(ctx: Lowering, x: ir.Value, number: float) -> ir.Value:
    """``number tanh(x / number)``."""
    cap = ctx.scalar(number, x.dtype)
    return ctx.op("Mul", ctx.op("Tanh", ctx.op("Div", x, cap)), cap)


def cast(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    assert isinstance(node.op, ops.Cast)
    return ctx.cast(x, ctx.resolve(node.op.dtype))


def constant(ctx: Lowering, node: Node) -> ir.Value:
    assert isinstance(node.op, ops.Constant)
    return ctx.constant(np.array(node.op.values, NUMPY_DTYPES[ir.DataType.FLOAT]))


def split(ctx: Lowering, node: Node, x: ir.Value) -> list[ir.Value]:
    assert isinstance(node.op, ops.Split)
    sizes = node.op.sizes
    return ctx.ops("Split", x, ctx.ints(*sizes), dtypes=(None,) * len(sizes), axis=-1)


def concat(ctx: Lowering, node: Node, *inputs: ir.Value) -> ir.Value:
    assert isinstance(node.op, ops.Concat)
    return ctx.op("Concat", *inputs, axis=-1)


def _alike(ctx: Lowering, node: Node, left: ir.Value, right: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Both operands in the dtype of the result."""
    dtype = ctx.resolve(node.outputs[0].dtype)
    return ctx.cast(left, dtype), ctx.cast(right, dtype)
