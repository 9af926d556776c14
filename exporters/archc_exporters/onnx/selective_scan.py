"""The selective scan of Mamba-1. Step, decays, skip and state are float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import selective_scan as ops
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.step import valid_tokens
from archc_exporters.onnx.weights import Array

FLOAT = ir.DataType.FLOAT


def selective_scan(ctx: Lowering, node: Node, x: ir.Value, dt: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """A Scan over tokens; padding has a step of 0, which changes no state."""
    assert isinstance(node.op, ops.SelectiveScan)
    ctx.note("Scan, token by token: LinearAttention has no decay that differs by channel of the values and by state")
    x, dt, b, c = (ctx.cast(value, FLOAT) for value in (x, dt, b, c))
    step = ctx.op("Softplus", ctx.op("Add", dt, ctx.weight(node, "dt_bias")))
    step = ctx.op("Mul", step, valid_tokens(ctx))
    rate = ctx.weight(node, "A_log", tag="rate", transform=_rate)
    column, row = ctx.ints(2), ctx.ints(1)

    def one_token(
        state: ir.Value, step: ir.Value, written: ir.Value, b: ir.Value, c: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        decay = ctx.op("Exp", ctx.op("Mul", ctx.op("Unsqueeze", step, column), rate))
        new = ctx.op("Mul", ctx.op("Unsqueeze", written, column), ctx.op("Unsqueeze", b, row))
        after = ctx.op("Add", ctx.op("Mul", state, decay), new)
        read = ctx.op("MatMul", after, ctx.op("Unsqueeze", c, column))
        return after, ctx.op("Squeeze", read, column)

    past = ctx.past(node, "recurrent_state")
    state, y = ctx.scan(past, (step, ctx.op("Mul", step, x), b, c), one_token, axis=1)
    ctx.present(node, "recurrent_state", state)
    y = ctx.op("Add", y, ctx.op("Mul", x, ctx.weight(node, "D")))
    return ctx.cast(y, ctx.resolve(node.outputs[0].dtype))


def _rate(a_log: Array) -> Array:
    return -np.exp(a_log.astype(np.float32))
