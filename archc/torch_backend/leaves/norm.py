"""Norms. All compute in float32 and return the input's dtype."""

# Shape suffixes: B batch, S new tokens, N heads, H head_dim, D width.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import norm as ops
from archc.torch_backend.context import Context, Function
from archc.torch_backend.leaves.elementwise import ACTIVATIONS


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMS norm over the last dimension, the mean square in float32."""
    if x.dtype == torch.float32 or x.dtype == torch.float64:
        return functional.rms_norm(x, x.shape[-1:], weight, eps)
    y = functional.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)
    return y if weight is None else y * weight


class RMSNorm(nn.Module):
    """Over the whole width, or over each head of it."""

    weight: nn.Parameter

    def __init__(self, op: ops.RMSNorm) -> None:
        super().__init__()
        self.eps, self.weight_offset, self.head_dim = op.eps, op.weight_offset, op.head_dim

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.weight_offset == 0.0 else self.weight + self.weight_offset
        if self.head_dim is None:
            return rms(x, weight, self.eps)
        return rms(x.unflatten(-1, (-1, self.head_dim)), weight, self.eps).flatten(-2)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


class LayerNorm(nn.Module):
    """Over the whole width, or over each head of it."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, op: ops.LayerNorm) -> None:
        super().__init__()
        self.eps, self.head_dim = op.eps, op.head_dim
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        # torch's kernel takes mean and variance in float32 whatever the input's dtype.
        heads = x if self.head_dim is None else x.unflatten(-1, (-1, self.head_dim))
        y = functional.layer_norm(heads, heads.shape[-1:], self.weight, self.bias, self.eps)
        return y if self.head_dim is None else y.flatten(-2)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}{'' if self.bias is not None else ', bias=False'}"


class GatedNorm(nn.Module):
    """``rms_norm(x) w act(gate)`` a head."""

    weight: nn.Parameter

    def __init__(self, op: ops.GatedNorm) -> None:
        super().__init__()
        self.eps, self.head_dim, self.function = op.eps, op.head_dim, op.function

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        y = rms(x.unflatten(-1, (-1, self.head_dim)), self.weight, self.eps).flatten(-2)
        return y * ACTIVATIONS[self.function](gate)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}, gate={self.function}"


class GatedGroupNorm(nn.Module):
    """``rms_norm(x act(gate)) w``, each of several slices by its own mean square; gated in float32."""

    weight: nn.Parameter

    def __init__(self, op: ops.GatedGroupNorm) -> None:
        super().__init__()
        self.eps, self.groups, self.function = op.eps, op.groups, op.function

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        y = x.to(wide) * ACTIVATIONS[self.function](gate.to(wide))
        y = rms(y.unflatten(-1, (self.groups, -1)), None, self.eps).flatten(-2)
        return y.to(x.dtype) * self.weight

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}, groups={self.groups}, gate={self.function}"


def weightless_rms(x: Tensor, *, head_dim: int, eps: float) -> Tensor:
    """RMS norm of each head without weights."""
    return rms(x.unflatten(-1, (-1, head_dim)), None, eps).flatten(-2)


def l2(x: Tensor, *, head_dim: int, eps: float) -> Tensor:
    """``x / sqrt(sum x^2 + eps)`` a head, the sum in float32."""
    # The same as an RMS norm with eps / head_dim, divided by sqrt(head_dim): torch's RMS norm saves less for backward.
    return (rms(x.unflatten(-1, (-1, head_dim)), None, eps / head_dim) * head_dim**-0.5).flatten(-2)


def rms_norm(node: Node, context: Context) -> nn.Module | Function:
    op = node.op
    assert isinstance(op, ops.RMSNorm)
    if not op.weight:
        return Function(weightless_rms, {"head_dim": op.head_dim or node.inputs[0].width, "eps": op.eps})
    module = RMSNorm(op)
    context.register(module, node.params["weight"], "weight")
    return module


def layer_norm(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.LayerNorm)
    module = LayerNorm(node.op)
    for role, param in node.params.items():
        context.register(module, param, role)
    return module


def gated_norm(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.GatedNorm)
    module = GatedNorm(node.op)
    context.register(module, node.params["weight"], "weight")
    return module


def gated_group_norm(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.GatedGroupNorm)
    module = GatedGroupNorm(node.op)
    context.register(module, node.params["weight"], "weight")
    return module


def l2_norm(node: Node, context: Context) -> Function:
    assert isinstance(node.op, ops.L2Norm)
    return Function(l2, {"head_dim": node.op.head_dim, "eps": node.op.eps})
