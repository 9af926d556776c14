"""The op in ONNX: onnxruntime's LinearAttention by the rule of gated linear attention."""

import numpy as np

from archc_exporters.onnx.step import valid_tokens


def retention(ctx, node, q, k, v):
    valid, heads = valid_tokens(ctx), len(node.op.decays)
    decay = ctx.op("Mul", valid, ctx.constant(np.log(np.array(node.op.decays, np.float32))))
    q, k, v = (ctx.cast(each, valid.dtype) for each in (q, k, v))
    # Padding neither decays the state nor writes to it.
    inputs = (q, ctx.op("Mul", k, valid), v, ctx.past(node, "state"), decay)
    words = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": "gated", "scale": node.op.head_dim**-0.5}
    y, state = ctx.ops("LinearAttention", *inputs, dtypes=(valid.dtype,) * 2, domain="com.microsoft", **words)
    ctx.present(node, "state", state)
    return ctx.cast(y, ctx.resolve(node.outputs[0].dtype))
