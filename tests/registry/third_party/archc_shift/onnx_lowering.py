"""The op in ONNX."""

from __future__ import annotations

from archc.ir.values import Node


def shift(ctx, node: Node, x):
    weight, past = ctx.weight(node, "weight"), ctx.past(node, "last")
    columns = ctx.op("Concat", past, x, axis=1)
    before = ctx.op("Slice", columns, ctx.ints(0), ctx.ints(-1), ctx.ints(1))
    index = ctx.op("Unsqueeze", ctx.inputs["seq_length"], ctx.ints(1, 2))
    ctx.present(node, "last", ctx.op("GatherND", columns, index, batch_dims=1))
    rest = ctx.op("Sub", ctx.scalar(1.0, x.dtype), weight)
    return ctx.op("Add", ctx.op("Mul", x, weight), ctx.op("Mul", before, rest))
