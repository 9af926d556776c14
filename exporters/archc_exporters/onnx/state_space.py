"""The selective state space of Mamba-2. Step, decay, rule, skip and state are float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import state_space as ops
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.elementwise import clamped
from archc_exporters.onnx.linear_rule import linear_rule
from archc_exporters.onnx.step import valid_tokens
from archc_exporters.onnx.weights import Array

FLOAT = ir.DataType.FLOAT


def state_space(ctx: Lowering, node: Node, x: ir.Value, b: ir.Value, c: ir.Value, dt: ir.Value) -> ir.Value:
    """LinearAttention with rule ``gated``: C is its query, B its key, dt x its value; padding has a step of 0."""
    op = node.op
    assert isinstance(op, ops.StateSpace)
    ctx.note("LinearAttention in float32, rule gated: a group of B and C is a head of keys; D x is added behind it")
    x, b, c, dt = (ctx.cast(value, FLOAT) for value in (x, b, c, dt))
    step = ctx.op("Softplus", ctx.op("Add", dt, ctx.weight(node, "dt_bias")))
    if op.time_step_limit is not None:
        step = clamped(ctx, step, *op.time_step_limit)
    step = ctx.op("Mul", step, valid_tokens(ctx))
    y = linear_rule(
        ctx,
        node,
        c,
        b,
        _stepped(ctx, op, x, step),
        ctx.op("Mul", step, ctx.weight(node, "A_log", tag="rate", transform=_rate)),
        rule="gated",
        scale=1.0,
        heads=op.num_heads,
        key_heads=op.n_groups,
        key_dim=op.state_size,
        value_dim=op.head_dim,
    )

    def by_channel(skip: Array) -> Array:
        return skip.astype(np.float32).repeat(op.head_dim)

    skip = ctx.weight(node, "D", tag="by_channel", shape=(op.num_heads * op.head_dim,), transform=by_channel)
    return ctx.cast(ctx.op("Add", y, ctx.op("Mul", x, skip)), ctx.resolve(node.outputs[0].dtype))


def _rate(a_log: Array) -> Array:
    return -np.exp(a_log.astype(np.float32))


def _stepped(ctx: Lowering, op: ops.StateSpace, x: ir.Value, step: ir.Value) -> ir.Value:
    """x times the step of its head."""
    heads = ctx.op("Reshape", x, ctx.ints(0, 0, op.num_heads, op.head_dim))
    product = ctx.op("Mul", heads, ctx.op("Unsqueeze", step, ctx.ints(3)))
    return ctx.op("Reshape", product, ctx.ints(0, 0, op.num_heads * op.head_dim))
