"""Gated recurrent units as Scans over tokens, in float32.

ONNX's own GRU takes padding on the right only, and attends to nothing; padding here has an update gate of 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import recurrent as ops
from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.score import meet, weigh
from archc_exporters.onnx.step import end_token, past_column, tokens, valid_tokens
from archc_exporters.onnx.weights import Array

BOOL, FLOAT, INT64 = ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT64


def gru(ctx: Lowering, node: Node, x: ir.Value, padding: ir.Value | None = None) -> ir.Value:
    """A Scan, backwards where the op is; ``padding`` (batch, seq) is 1 for tokens."""
    op = node.op
    assert isinstance(op, ops.GRU)
    ctx.note("Scan, token by token: ONNX's GRU takes padding on the right only")
    sequences = [ctx.cast(x, FLOAT)]
    if op.keeps:
        sequences.append(valid_tokens(ctx))
        start = ctx.past(node, "recurrent_state")
    else:
        if padding is not None:
            sequences.append(ctx.op("Unsqueeze", ctx.cast(padding, FLOAT), ctx.ints(2)))
        batch = ctx.op("Shape", tokens(ctx), dtype=INT64, start=0, end=1)
        start = ctx.filled(ctx.op("Concat", batch, ctx.ints(op.hidden_size), axis=0), 0.0, FLOAT)
    cell = _cell(ctx, node, op.hidden_size)

    def one_token(state: ir.Value, given: ir.Value, *valid: ir.Value) -> tuple[ir.Value, ir.Value]:
        after = cell(state, given, *valid)
        return after, ctx.op("Identity", after)

    state, y = ctx.scan(start, sequences, one_token, axis=1, is_backward=op.is_backward)
    if op.keeps:
        ctx.present(node, "recurrent_state", state)
    return ctx.cast(y, ctx.resolve(node.outputs[0].dtype))


def attention_gru(
    ctx: Lowering,
    node: Node,
    x: ir.Value | None,
    keys: ir.Value | None,
    memory: ir.Value | None,
    padding: ir.Value | None = None,
) -> ir.Value | None:
    """With the encoder, keys and memory go out; in the decoder they come in, and a Scan reads them at every token."""
    op = node.op
    assert isinstance(op, ops.AttentionGRU)
    if ctx.part == "encoder":
        assert keys is not None
        assert memory is not None
        ctx.note("keys and memory as outputs, written once a text")
        ctx.kept(node, "key", ctx.op("Unsqueeze", keys, ctx.ints(1)))
        ctx.kept(node, "value", ctx.op("Unsqueeze", memory, ctx.ints(1)))
        return None
    assert x is not None
    ctx.note("Scan, token by token, attention inside: a token's query is made of the state before it")
    rows, values = (ctx.cast(ctx.past(node, role), FLOAT) for role in ("key", "value"))
    seen = None if padding is None else ctx.op("Unsqueeze", ctx.cast(padding, BOOL), ctx.ints(1, 2))
    query, context = _transposed(ctx, node, "query"), _transposed(ctx, node, "context")
    weight = None
    if op.meeting == "sum":
        size = node.params["weight"].shape[1]
        column = ctx.weight(node, "weight", tag="columns", shape=(1, 1, size, 1), transform=_columns)
        weight = ctx.cast(column, FLOAT)
    cell = _cell(ctx, node, op.hidden_size)

    def one_token(state: ir.Value, given: ir.Value, valid: ir.Value) -> tuple[ir.Value, ir.Value]:
        asked = ctx.op("Unsqueeze", ctx.op("MatMul", state, query), ctx.ints(1, 2))
        weights = weigh(ctx, op.form, meet(ctx, op.form, asked, rows, weight), seen)
        read = ctx.op("Squeeze", ctx.op("MatMul", weights, values), ctx.ints(1, 2))
        after = cell(state, ctx.op("Add", given, ctx.op("MatMul", read, context)), valid)
        return after, ctx.op("Concat", state, read, axis=-1)

    start = _start(ctx, node, values, padding)
    state, y = ctx.scan(start, (ctx.cast(x, FLOAT), valid_tokens(ctx)), one_token, axis=1)
    ctx.present(node, "recurrent_state", state)
    return ctx.cast(y, ctx.resolve(node.outputs[0].dtype))


def _cell(ctx: Lowering, node: Node, size: int) -> Callable[..., ir.Value]:
    """The state after one token of a state, what its gates are given, and whether it is one (batch, 1)."""
    gates, candidate = _transposed(ctx, node, "gates"), _transposed(ctx, node, "candidate")

    def cell(state: ir.Value, given: ir.Value, *valid: ir.Value) -> ir.Value:
        both, new = ctx.ops("Split", given, ctx.ints(2 * size, size), dtypes=(FLOAT, FLOAT), axis=-1)
        open_ = ctx.op("Sigmoid", ctx.op("Add", both, ctx.op("MatMul", state, gates)))
        update, reset = ctx.ops("Split", open_, ctx.ints(size, size), dtypes=(FLOAT, FLOAT), axis=-1)
        for is_token in valid:
            update = ctx.op("Mul", update, is_token)
        new = ctx.op("Tanh", ctx.op("Add", new, ctx.op("MatMul", ctx.op("Mul", reset, state), candidate)))
        return ctx.op("Add", state, ctx.op("Mul", update, ctx.op("Sub", new, state)))

    return cell


def _start(ctx: Lowering, node: Node, values: ir.Value, padding: ir.Value | None) -> ir.Value:
    """The state that is kept, or for a row that begins what the memory (batch, 1, T, M) of its first token gives."""
    width = node.inputs[2].width
    memory = ctx.op("Squeeze", values, ctx.ints(1))
    if padding is None:
        first = ctx.op("Gather", memory, ctx.scalar(0, INT64), axis=1)
    else:
        first = ctx.op("GatherND", memory, end_token(ctx, padding, first=True), batch_dims=1)
    half = ctx.op("Slice", first, ctx.ints(width // 2), ctx.ints(width), ctx.ints(1))
    begun = ctx.op("Tanh", ctx.op("MatMul", half, _transposed(ctx, node, "init")))
    is_new = ctx.op("Equal", past_column(ctx), ctx.scalar(0, INT64), dtype=BOOL)
    return ctx.op("Where", is_new, begun, ctx.past(node, "recurrent_state"), dtype=FLOAT)


def _transposed(ctx: Lowering, node: Node, role: str) -> ir.Value:
    """A matrix as MatMul wants it, float32."""
    rows, columns = node.params[role].shape
    return ctx.cast(ctx.weight(node, role, tag="transposed", shape=(columns, rows), transform=_turned), FLOAT)


def _turned(weight: Array) -> Array:
    return np.ascontiguousarray(weight.T)


def _columns(weight: Array) -> Array:
    """(1, H) -> (1, 1, H, 1)."""
    return weight[:, None, :, None]
