"""Linear attention, its decay gate and the short convolution before it. Rule, gate and state are float32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import linear_attention as ops
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.elementwise import activate
from archc_exporters.onnx.linear_rule import linear_rule
from archc_exporters.onnx.norm import l2_normed_in_float
from archc_exporters.onnx.step import new_tokens, seq_column, valid_tokens
from archc_exporters.onnx.weights import Array

FLOAT = ir.DataType.FLOAT


def linear_attention(
    ctx: Lowering, node: Node, q: ir.Value, k: ir.Value, v: ir.Value, decay: ir.Value, beta: ir.Value | None = None
) -> ir.Value:
    """LinearAttention; padding changes nothing because its decay is exp(0) and its beta, or without betas its key, 0."""
    op = node.op
    assert isinstance(op, ops.LinearAttention)
    ctx.note("LinearAttention in float32: a state rounded every step drifts, and the kernel wants one dtype throughout")
    valid = valid_tokens(ctx)
    query, key = l2_normed_in_float(ctx, q), l2_normed_in_float(ctx, k)
    value, decay = ctx.cast(v, FLOAT), ctx.op("Mul", ctx.cast(decay, FLOAT), valid)
    if beta is None:
        key = ctx.op("Mul", key, valid)
    else:
        beta = ctx.op("Mul", ctx.cast(beta, FLOAT), valid)
    y = linear_rule(
        ctx,
        node,
        query,
        key,
        value,
        decay,
        beta,
        rule=op.rule,
        scale=op.scale,
        heads=op.num_heads,
        key_heads=op.num_key_heads,
        key_dim=op.key_dim,
        value_dim=op.value_dim,
        by_channel=node.inputs[3].width != op.num_heads,
    )
    return ctx.cast(y, ctx.resolve(node.outputs[0].dtype))


def fixed_decay(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """The numbers for every valid token, and no decay on padding, (batch, seq, heads)."""
    assert isinstance(node.op, ops.FixedDecay)
    return ctx.op("Mul", ctx.constant(np.array(node.op.values, np.float32)), valid_tokens(ctx), dtype=FLOAT)


def log_decay(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """LinearAttentionGate for the softplus form, plain float32 ops for the one with a floor."""
    op = node.op
    assert isinstance(op, ops.LogDecay)
    width = node.inputs[0].width
    repeats = width // op.num_heads
    x, bias = ctx.cast(x, FLOAT), ctx.weight(node, "dt_bias")
    if op.floor is None:
        ctx.note("LinearAttentionGate: elementwise over its last axis, so it serves a decay a channel as well")

        def rate(a_log: Array) -> Array:
            return -np.exp(a_log.astype(np.float32)).repeat(repeats)

        speed = ctx.weight(node, "A_log", tag="rate", shape=(width,), transform=rate)
        return ctx.op("LinearAttentionGate", x, bias, speed, domain=MS)
    ctx.note("Add, Mul, Sigmoid: LinearAttentionGate has no floor")

    def steepness(a_log: Array) -> Array:
        return np.exp(a_log.astype(np.float32)).repeat(repeats)

    steep = ctx.weight(node, "A_log", tag="steepness", shape=(width,), transform=steepness)
    share = ctx.op("Sigmoid", ctx.op("Mul", ctx.op("Add", x, bias), steep))
    return ctx.op("Mul", share, ctx.scalar(op.floor, FLOAT))


def causal_conv(ctx: Lowering, node: Node, *streams: ir.Value) -> list[ir.Value]:
    """All streams side by side through one convolution; the kept columns are those before each row's true end."""
    op = node.op
    assert isinstance(op, ops.CausalConv)
    widths = [value.width for value in node.inputs]
    x = streams[0] if len(streams) == 1 else ctx.op("Concat", *streams, axis=-1)

    past = ctx.past(node, "conv_state")
    columns = ctx.op("Concat", past, x, axis=1)
    y = (_by_taps if ctx.target.provider == "cpu" else _by_kernel)(ctx, node, x, columns)
    ctx.present(node, "conv_state", ctx.op("GatherND", columns, _kept(ctx, op), batch_dims=1))
    if len(streams) == 1:
        return [y]
    return ctx.ops("Split", y, ctx.ints(*widths), dtypes=(None,) * len(widths), axis=-1)


def _side_by_side(*weights: Array) -> Array:
    return np.concatenate(weights)


def _by_kernel(ctx: Lowering, node: Node, x: ir.Value, columns: ir.Value) -> ir.Value:
    """CausalConvWithState; its own next state is not used, because it ends at the padded length."""
    op = node.op
    assert isinstance(op, ops.CausalConv)
    fused = op.function if op.function in (None, "silu") else None
    ctx.note(f"CausalConvWithState over {len(op.streams)} streams; columns to keep by GatherND at the true length")
    # From the copy, so that nothing reads the cache once its successor is being written: both may be one buffer.
    past = ctx.op("Slice", columns, ctx.ints(0), ctx.ints(op.kernel - 1), ctx.ints(1))
    y, _ = ctx.ops(
        "CausalConvWithState",
        x,
        ctx.weight(
            node,
            *_roles(op, "weight"),
            tag="joined",
            shape=(_width(node), 1, op.kernel),
            transform=_side_by_side,
        ),
        _conv_bias(ctx, node),
        past,
        dtypes=(None, None),
        domain=MS,
        channels_last=1,
        activation=fused or "none",
    )
    return y if op.function == fused else activate(ctx, y, op.function or "")


def _by_taps(ctx: Lowering, node: Node, x: ir.Value, columns: ir.Value) -> ir.Value:
    """A product and a sum a tap over shifted columns: the CPU's CausalConvWithState takes ten times as long over a prompt."""
    op = node.op
    assert isinstance(op, ops.CausalConv)
    ctx.note(f"Slice, Mul, Add for each of {op.kernel} taps: CausalConvWithState is slow on the CPU")
    y = _conv_bias(ctx, node)
    for tap in range(op.kernel):

        def column(*weights: Array, tap: int = tap) -> Array:
            return np.concatenate(weights)[:, 0, tap]

        weight = ctx.weight(node, *_roles(op, "weight"), tag=f"tap{tap}", shape=(_width(node),), transform=column)
        shifted = ctx.op("Slice", columns, ctx.ints(tap), _tap_end(ctx, tap), ctx.ints(1))
        product = ctx.op("Mul", shifted, weight)
        y = product if y is None else ctx.op("Add", product, y)
    assert y is not None
    return y if op.function is None else activate(ctx, y, op.function)


def _tap_end(ctx: Lowering, tap: int) -> ir.Value:
    """Column behind the last one that a tap reads, int64 [1]."""
    return ctx.shared(
        ("tap end", tap), lambda: ctx.op("Add", new_tokens(ctx), ctx.ints(tap)) if tap else new_tokens(ctx)
    )


def _width(node: Node) -> int:
    """Channels of all streams."""
    return sum(value.width for value in node.inputs)


def _roles(op: ops.CausalConv, what: str) -> list[str]:
    return [f"{stream}.{what}" for stream in op.streams]


def _conv_bias(ctx: Lowering, node: Node) -> ir.Value | None:
    op = node.op
    assert isinstance(op, ops.CausalConv)
    if not op.bias:
        return None
    return ctx.weight(node, *_roles(op, "bias"), tag="joined", shape=(_width(node),), transform=_side_by_side)


def _kept(ctx: Lowering, op: ops.CausalConv) -> ir.Value:
    """Columns of [past | new] to keep: the kernel - 1 that end at the row's last valid token, (batch, kernel - 1, 1)."""

    def make() -> ir.Value:
        columns = ctx.constant(np.arange(op.kernel - 1)[None])
        return ctx.op("Unsqueeze", ctx.op("Add", seq_column(ctx), columns), ctx.ints(2))

    return ctx.shared(("kept columns", op.kernel), make)
