"""A linear map in groups."""

# Shape suffixes: B batch, S tokens, G groups, D inputs of a group, R outputs of a group.

from __future__ import annotations

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import block_diagonal as ops
from archc.torch_backend.context import Context


class BlockDiagonal(nn.Module):
    """Each group of channels through rows of the weight that are its own: (B, S, G x D) -> (B, S, G x R)."""

    weight: nn.Parameter

    def __init__(self, op: ops.BlockDiagonal) -> None:
        super().__init__()
        self.groups = op.groups

    def forward(self, x: Tensor) -> Tensor:
        x_GTD = x.unflatten(-1, (self.groups, -1)).flatten(0, -3).transpose(0, 1)
        w_GDR = self.weight.unflatten(0, (self.groups, -1)).transpose(1, 2)
        return torch.bmm(x_GTD, w_GDR).transpose(0, 1).flatten(1).view(*x.shape[:-1], -1)

    def extra_repr(self) -> str:
        width, inner = self.weight.shape
        return f"{self.groups} x ({inner} -> {width // self.groups})"


def block_diagonal(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.BlockDiagonal)
    module = BlockDiagonal(node.op)
    context.register(module, node.params["weight"], "weight")
    return module
