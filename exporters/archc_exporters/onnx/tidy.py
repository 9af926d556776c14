"""Passes over a whole graph, after every op has been lowered by itself, and what they change in the report."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.fuse import cast_before_split, fuse_residual_norms
from archc_exporters.onnx.linear import ONE_PRODUCT
from archc_exporters.onnx.norm import WHOLE_WIDTH
from archc_exporters.onnx.pack import pack_linears
from archc_exporters.onnx.prune import pick_last_token_early
from archc_exporters.onnx.quantize import mark_small, quantize_weights
from archc_exporters.onnx.rotary import TURNS

_FUSED = "SkipSimplifiedLayerNormalization: the residual sum before it and the norm in one kernel"

_PACKED = {
    "attention": "queries, keys and values by one MatMul that GroupQueryAttention reads as it is",
    "conv": "the streams of a short convolution by one MatMul",
    "split": "several that read one input by one MatMul and a Split",
}


def tidy(ctx: Lowering, model: ir.Model) -> None:
    """Join what one op's lowering can't see, and drop what nobody reads any more."""
    turns = _count(model, "RotaryEmbedding")
    RemoveUnusedNodesPass()(model)
    _recount(ctx, ("rotary", TURNS), "rotation inside GroupQueryAttention", turns - _count(model, "RotaryEmbedding"))
    pick_last_token_early(model.graph)
    _recount(ctx, ("rms_norm", WHOLE_WIDTH), _FUSED, fuse_residual_norms(model.graph))
    if ctx.target.quant is not None:
        mark_small(model.graph, ctx.target.quant)
    cast_before_split(model.graph)
    for kind, count in pack_linears(model.graph, ctx.target.provider).items():
        _recount(ctx, ("linear", ONE_PRODUCT), f"{ONE_PRODUCT}; {_PACKED[kind]}", count)
    ctx.quantization = quantize_weights(model.graph, ctx.target)


def _count(model: ir.Model, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph.all_nodes())


def _recount(ctx: Lowering, plain: tuple[str, str], form: str, count: int) -> None:
    """``count`` of the nodes that were noted as ``plain`` have another form after all."""
    rest = ctx.choices.pop(plain, 0) - count
    for key, number in ((plain, rest), ((plain[0], form), count)):
        if number > 0:
            ctx.choices[key] = number
