"""A linear map in groups, as one batched product."""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import block_diagonal as ops
from archc_exporters.onnx.context import KEEP_FLOAT, Lowering
from archc_exporters.onnx.weights import Array


def block_diagonal(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """MatMul of (batch, groups, seq, inputs) and (groups, inputs, outputs) between two Transposes."""
    op = node.op
    assert isinstance(op, ops.BlockDiagonal)
    ctx.note("MatMul a group between two Transposes")
    groups, inner, outer = op.groups, node.inputs[0].width // op.groups, op.width // op.groups

    def by_group(weight: Array) -> Array:
        return weight.reshape(groups, outer, inner).transpose(0, 2, 1)

    weight = ctx.weight(node, "weight", tag="groups", shape=(groups, inner, outer), transform=by_group)
    weight.meta[KEEP_FLOAT] = "groups with a product each, which no kernel for integer weights has"
    split = ctx.op("Transpose", ctx.op("Reshape", x, ctx.ints(0, 0, groups, inner)), perm=[0, 2, 1, 3])
    y = ctx.op("Transpose", ctx.op("MatMul", split, weight), perm=[0, 2, 1, 3])
    return ctx.op("Reshape", y, ctx.ints(0, 0, op.width))
