"""``linear`` and ``embedding``."""

from __future__ import annotations

import onnx_ir as ir

from archc.ir.values import Node
from archc.ops import linear as ops
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.states import ENCODER
from archc_exporters.onnx.transforms import Rows, Transposed

ONE_PRODUCT = "MatMul: the weight is stored as in x out, so that nothing is transposed at run time"
"""The form of a linear, until it is joined with others that read the same input."""


def linear(ctx: Lowering, node: Node, x: ir.Value) -> ir.Value:
    """MatMul with the weight stored transposed; a tied weight stays as the embedding stores it and is read transposed.

    A head's rows beyond the vocabulary are cut from the weight: no id stands for them.
    """
    op = node.op
    assert isinstance(op, ops.Linear)
    width = _vocabulary_rows(ctx, op.width) if op.axis == "vocab" else op.width
    inner = node.params["weight"].shape[1]
    dtype = ctx.resolve(op.dtype)
    out_dtype, x = x.dtype, ctx.cast(x, dtype)
    if op.tied:
        table = ctx.weight(node, "weight", shape=(width, inner), transform=Rows(width))
        y = _by_tied_table(ctx, x, table)
    else:
        ctx.note(ONE_PRODUCT)
        weight = ctx.weight(node, "weight", tag="transposed", shape=(inner, width), transform=Transposed(width))
        y = ctx.op("MatMul", x, weight)
    if op.bias:
        y = ctx.op("Add", y, ctx.weight(node, "bias", shape=(width,), transform=Rows(width)))
    assert out_dtype is not None
    return ctx.cast(y, out_dtype)


def _by_tied_table(ctx: Lowering, x: ir.Value, table: ir.Value) -> ir.Value:
    """x times the table's transpose; the file holds the table once, rows x width."""
    if ctx.target.provider == "cpu" and ctx.target.quant is None:
        ctx.note(
            "Transpose and MatMul: onnxruntime transposes the tied table when it loads the file, and packs it for the CPU"
        )
        return ctx.op("MatMul", x, ctx.op("Transpose", table, perm=[1, 0]))
    ctx.note("FusedMatMul: the tied table is in the file once, rows x width, and is read transposed")
    return ctx.op("FusedMatMul", x, table, domain=MS, transB=1)


def embedding(ctx: Lowering, node: Node, ids: ir.Value) -> ir.Value:
    """Gather. Rows of a token table beyond the vocabulary are no id's and stay out of the file."""
    op = node.op
    assert isinstance(op, ops.Embedding)
    rows = _vocabulary_rows(ctx, op.num_embeddings) if _is_of_vocabulary(ctx, node, ids) else op.num_embeddings
    ctx.note("Gather")
    table = ctx.weight(node, "weight", shape=(rows, op.width), transform=Rows(rows))
    return ctx.op("Gather", table, ids, axis=0)


def _is_of_vocabulary(ctx: Lowering, node: Node, ids: ir.Value) -> bool:
    """Whether a table has a row an id of the file: it is the token table, or an encoder's that the decoder reads too."""
    if ids is ctx.inputs.get("input_ids"):
        return True
    if not isinstance(node.op, ops.Embedding) or ids is not ctx.inputs.get(f"{ENCODER}input_ids"):
        return False
    weight = node.params["weight"]
    return any(
        other is not node and isinstance(other.op, ops.Embedding) and other.params["weight"] is weight
        for _, other in ctx.graph.walk()
    )


def _vocabulary_rows(ctx: Lowering, rows: int) -> int:
    return rows if ctx.graph.vocab_size is None else min(rows, ctx.graph.vocab_size)
