"""Elementwise ops as plain functions."""

# Shape suffixes: B batch, S new tokens, D width.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from archc.ir.values import MODEL_DTYPE, Node
from archc.ops.elementwise import Activation, Cast, Constant, GatedActivation, Scale, SoftCap, Split
from archc.torch_backend.context import Context, Function, torch_dtype


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation."""
    return functional.gelu(x, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    """relu squared (arXiv 2109.08668)."""
    return functional.relu(x).square()


def elu_plus_one(x: Tensor) -> Tensor:
    """e^x up to 0, x + 1 above (arXiv 2006.16236); not ``elu(x) + 1``, whose digits go where x is far below 0."""
    return functional.relu(x) + x.clamp(max=0).exp()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": functional.relu,
    "relu2": relu2,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "elu_plus_one": elu_plus_one,
}


def gating_words(op: GatedActivation) -> dict[str, Any]:
    """Keywords of ``gated``."""
    return {
        "function": op.function,
        "limit": op.limit,
        "alpha": op.alpha,
        "up_offset": op.up_offset,
        "beta": op.beta,
        "linear_beta": op.linear_beta,
    }


def gated(
    gate: Tensor,
    up: Tensor,
    *,
    function: str,
    limit: float | None,
    alpha: float,
    up_offset: float,
    beta: float | None = None,
    linear_beta: float | None = None,
) -> Tensor:
    """``act(alpha gate) gate (up + up_offset)`` with both branches clamped to ``limit``; situ caps both softly."""
    if beta is not None:
        up = up if linear_beta is None else soft_capped(up, linear_beta)
        return soft_capped(gate, beta) * torch.sigmoid(gate) * up
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if up_offset:
        up = up + up_offset
    if alpha != 1.0:
        return gate * torch.sigmoid(gate * alpha) * up
    return ACTIVATIONS[function](gate) * up


def soft_capped(x: Tensor, cap: float) -> Tensor:
    """``cap tanh(x / cap)``."""
    return torch.tanh(x / cap) * cap


def cast_to(x: Tensor, *, dtype: torch.dtype) -> Tensor:
    """x in another dtype."""
    return x.to(dtype)


def add(node: Node, context: Context) -> Function:
    return Function(torch.add)


def mul(node: Node, context: Context) -> Function:
    return Function(torch.mul)


def scale(node: Node, context: Context) -> Function:
    assert isinstance(node.op, Scale)
    return Function(torch.mul, {"other": node.op.factor})


def activation(node: Node, context: Context) -> Function:
    assert isinstance(node.op, Activation)
    return Function(ACTIVATIONS[node.op.function])


def gated_activation(node: Node, context: Context) -> Function:
    op = node.op
    assert isinstance(op, GatedActivation)
    return Function(gated, gating_words(op))


def soft_cap(node: Node, context: Context) -> Function:
    assert isinstance(node.op, SoftCap)
    return Function(soft_capped, {"cap": node.op.cap})


def cast(node: Node, context: Context) -> Function:
    assert isinstance(node.op, Cast)
    dtype = context.dtype if node.op.dtype == MODEL_DTYPE else torch_dtype(node.op.dtype)
    return Function(cast_to, {"dtype": dtype})


def constant(node: Node, context: Context) -> Function:
    assert isinstance(node.op, Constant)
    return Function(torch.tensor, {"data": list(node.op.values), "dtype": torch.float32, "device": context.device})


def split(node: Node, context: Context) -> Function:
    assert isinstance(node.op, Split)
    return Function(torch.split, {"split_size_or_sections": list(node.op.sizes), "dim": -1})


def joined(*values: Tensor) -> Tensor:
    """Values joined along the last dimension."""
    return torch.cat(values, -1)


def concat(node: Node, context: Context) -> Function:
    return Function(joined)
