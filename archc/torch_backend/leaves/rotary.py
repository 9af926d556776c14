"""Rotary tables, made once a call in float32, and the rotation."""

# Shape suffixes: B batch or 1, S new tokens, N heads, H head_dim, R half of the turned channels.

from __future__ import annotations

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import rotary as ops
from archc.torch_backend.context import Context, Function
from archc.torch_backend.leaves.numbers import numbers


class RopeTable(nn.Module):
    """positions (B, S) -> cos, sin (B, S, R). The frequencies are numbers: a buffer would be garbage after a meta build."""

    def __init__(self, op: ops.RopeTable) -> None:
        super().__init__()
        self.frequencies, self.factor = op.frequencies, op.factor

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles_BSR = positions.unsqueeze(-1).float() * numbers(self.frequencies, positions)
        cos, sin = angles_BSR.cos(), angles_BSR.sin()
        return (cos, sin) if self.factor == 1.0 else (cos * self.factor, sin * self.factor)

    def extra_repr(self) -> str:
        return f"dim={2 * len(self.frequencies)}, factor={self.factor:g}"


def rotate(x: Tensor, cos_BSR: Tensor, sin_BSR: Tensor, *, head_dim: int, dim: int, offset: int, style: str) -> Tensor:
    """``dim`` channels of each head turned, from ``offset``: x (B, S, N x H) -> same."""
    x_BSNH = x.view(x.shape[0], x.shape[1], -1, head_dim)
    part = x_BSNH[..., offset : offset + dim] if dim != head_dim else x_BSNH
    cos, sin = cos_BSR.unsqueeze(-2).to(x.dtype), sin_BSR.unsqueeze(-2).to(x.dtype)
    if style == "half":
        first, second = part.chunk(2, -1)
    else:
        first, second = part[..., 0::2], part[..., 1::2]
    left = torch.addcmul(first * cos, second, sin, value=-1)
    right = torch.addcmul(second * cos, first, sin)
    turned = torch.cat((left, right), -1) if style == "half" else torch.stack((left, right), -1).flatten(-2)
    if dim != head_dim:
        turned = torch.cat((x_BSNH[..., :offset], turned, x_BSNH[..., offset + dim :]), -1)
    return turned.flatten(-2)


def warmed(x: Tensor, positions: Tensor, *, scale: float, floor: int) -> Tensor:
    """Queries times ``1 + scale ln(1 + floor((position + 1) / floor))``."""
    steps = torch.div(positions + 1, floor, rounding_mode="floor").float()
    return x * (torch.log1p(steps) * scale + 1.0).unsqueeze(-1).to(x.dtype)


def rope_table(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.RopeTable)
    return RopeTable(node.op)


def rotary(node: Node, context: Context) -> Function:
    op = node.op
    assert isinstance(op, ops.Rotary)
    return Function(rotate, {"head_dim": op.head_dim, "dim": op.dim, "offset": op.offset, "style": op.style})


def query_temperature(node: Node, context: Context) -> Function:
    op = node.op
    assert isinstance(op, ops.QueryTemperature)
    return Function(warmed, {"scale": op.scale, "floor": op.floor})
