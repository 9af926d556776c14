"""onnxruntime's LinearAttention over a node's matrix state, whole or in pieces of its values."""

from __future__ import annotations

import onnx_ir as ir

from archc.errors import GraphError
from archc.ir.values import Node
from archc_exporters.onnx.context import MS, Lowering
from archc_exporters.onnx.limits import linear_attention_limit, value_pieces

FLOAT = ir.DataType.FLOAT


def linear_rule(
    ctx: Lowering,
    node: Node,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    decay: ir.Value | None = None,
    beta: ir.Value | None = None,
    *,
    rule: str,
    scale: float,
    heads: int,
    key_heads: int,
    key_dim: int,
    value_dim: int,
    by_channel: bool = False,
) -> ir.Value:
    """The outputs (batch, seq, heads x value_dim) in float32; the node's ``recurrent_state`` is read and written.

    A prompt holds the state of a head, key_dim x value_dim floats, in a block's shared memory on CUDA. Where no device has so
    much, a head becomes several that share its query, key and decays, and each has a piece of its values: no rule mixes the
    columns of a state. ``by_channel`` says that decays are one a key channel.

    Raises:
        GraphError: not even one value's column of a state fits.
    """
    pieces = value_pieces(key_dim, value_dim, ctx.target)
    if pieces is None:
        raise GraphError(f"{ctx.path}: {linear_attention_limit(key_dim, value_dim, ctx.target)[0]}")
    if remark := linear_attention_limit(key_dim, value_dim // pieces, ctx.target)[1]:
        ctx.remark(remark)
    past = ctx.past(node, "recurrent_state")
    if pieces > 1:
        ctx.remark(
            f"linear attention states of {key_dim} x {value_dim} are worked on in {pieces} pieces of {value_dim // pieces} "
            "values: a prompt over a whole one needs more shared memory than any CUDA device has; each call copies them"
        )
        past = _by_piece(ctx, past, heads, key_dim, value_dim, pieces)
        if decay is not None:
            decay = _repeated(ctx, decay, heads, key_dim if by_channel else 1, pieces)
        if beta is not None:
            beta = _repeated(ctx, beta, heads, 1, pieces)
    y, state = ctx.ops(
        "LinearAttention",
        q,
        k,
        v,
        past,
        decay,
        beta,
        dtypes=(FLOAT, FLOAT),
        domain=MS,
        q_num_heads=key_heads,
        kv_num_heads=heads * pieces,
        update_rule=rule,
        scale=scale,
    )
    ctx.present(
        node, "recurrent_state", state if pieces == 1 else _whole(ctx, state, heads, key_dim, value_dim, pieces)
    )
    return y


def _by_piece(ctx: Lowering, state: ir.Value, heads: int, keys: int, values: int, pieces: int) -> ir.Value:
    """(batch, heads, K, V) -> (batch, heads x pieces, K, V / pieces)."""
    cut = ctx.op("Reshape", state, ctx.ints(0, heads, keys, pieces, values // pieces))
    turned = ctx.op("Transpose", cut, perm=[0, 1, 3, 2, 4])
    return ctx.op("Reshape", turned, ctx.ints(0, heads * pieces, keys, values // pieces))


def _whole(ctx: Lowering, state: ir.Value, heads: int, keys: int, values: int, pieces: int) -> ir.Value:
    """The way back."""
    cut = ctx.op("Reshape", state, ctx.ints(0, heads, pieces, keys, values // pieces))
    return ctx.op("Reshape", ctx.op("Transpose", cut, perm=[0, 1, 3, 2, 4]), ctx.ints(0, heads, keys, values))


def _repeated(ctx: Lowering, x: ir.Value, heads: int, width: int, pieces: int) -> ir.Value:
    """Each head's ``width`` numbers once a piece, (batch, seq, heads x pieces x width)."""
    alone = ctx.op("Reshape", x, ctx.ints(0, 0, heads, 1, width))
    wide = ctx.op("Expand", alone, ctx.ints(1, 1, 1, pieces, 1))
    return ctx.op("Reshape", wide, ctx.ints(0, 0, heads * pieces * width))
