"""What onnxruntime-genai feeds a decoder, and the lengths of a call read off it.

Rows of a batch are padded on the right: a row's tokens have ones in its mask, and a new token stands in the cache at its
own position. Padding is marked by the id of the padding token, which its runtime reads from the end of a prompt.
"""

from __future__ import annotations

import onnx_ir as ir

from archc_exporters.onnx.context import Lowering
from archc_exporters.onnx.step import token_index

INT64 = ir.DataType.INT64


def lengths(ctx: Lowering) -> dict[str, ir.Value]:
    """The inputs that files of archc's own convention have, computed from those that this file has instead.

    Beside them ``held_length``, the tokens that each row holds after the call, (batch,). All are made whether or not an op
    reads them, and dropped with other unused nodes. The longest row is a shape, so it lives on the host, where kernels want
    it; the number of new tokens is counted on the device, because what is added to a tensor there would be copied to it.
    """

    def make() -> dict[str, ir.Value]:
        mask, position_ids = ctx.inputs["attention_mask"], ctx.inputs["position_ids"]
        past = ctx.op("Squeeze", ctx.op("Slice", position_ids, ctx.ints(0), ctx.ints(1), ctx.ints(1)), ctx.ints(1))
        held = ctx.op("ReduceSum", mask, ctx.ints(1), keepdims=0)
        last = ctx.op("Slice", token_index(ctx), ctx.ints(-1), ctx.ints(2**31 - 1), ctx.ints(1))
        new = ctx.op("Add", ctx.op("Squeeze", last, ctx.ints(1)), ctx.ints(1))
        return {
            "past_length": past,
            "seq_length": ctx.op("Sub", held, past),
            "held_length": held,
            "kv_length": ctx.op("Add", past, new),
            "max_length": ctx.op("Shape", mask, dtype=INT64, start=1, end=2),
        }

    return ctx.shared("lengths", make)
