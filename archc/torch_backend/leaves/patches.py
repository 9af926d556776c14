"""Pictures as tokens."""

# Shape suffixes: B batch, C channels, P patches, D width.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import patches as ops
from archc.torch_backend.context import Context


class PatchProjection(nn.Module):
    """pixels (B, C, height, width) -> (B, P, D), patches row by row."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, op: ops.PatchProjection, size: tuple[int, int, int]) -> None:
        super().__init__()
        self.patch_size, self.size = op.patch_size, size

    def forward(self, pixels: Tensor) -> Tensor:
        """
        Raises:
            ValueError: the pictures have another size than the spec says.
        """
        if tuple(pixels.shape[1:]) != self.size:
            raise ValueError(
                f"pixel_values should be (batch, {', '.join(map(str, self.size))}), not {list(pixels.shape)}"
            )
        pixels = pixels.to(self.weight.dtype)
        return functional.conv2d(pixels, self.weight, self.bias, stride=self.patch_size).flatten(2).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"patch_size={self.patch_size}, pixels={self.size}"


class FirstToken(nn.Module):
    """x (B, P, D) -> (B, P + 1, D), the learned vector first."""

    weight: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.weight.expand(x.shape[0], 1, -1), x), 1)


def patch_projection(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.PatchProjection)
    _, channels, height, width = node.inputs[0].shape
    assert isinstance(channels, int)
    assert isinstance(height, int)
    assert isinstance(width, int)
    module = PatchProjection(node.op, (channels, height, width))
    context.register(module, node.params["weight"], "weight")
    context.register(module, node.params["bias"], "bias")
    return module


def first_token(node: Node, context: Context) -> nn.Module:
    module = FirstToken()
    context.register(module, node.params["weight"], "weight")
    return module
