"""What positions add to the embedding."""

# Shape suffixes: B batch or 1, S new tokens, D width, R half of it.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import position as ops
from archc.torch_backend.context import Context, Function
from archc.torch_backend.leaves.numbers import numbers


class LearnedPositions(nn.Module):
    """positions (B, S) -> rows ``offset + position`` of a learned table, (B, S, D)."""

    weight: nn.Parameter

    def __init__(self, op: ops.LearnedPositions) -> None:
        super().__init__()
        self.offset, self.num_positions = op.offset, op.num_positions

    def forward(self, positions: Tensor) -> Tensor:
        """
        Raises:
            ValueError: a position has no row; padding counts. On a GPU, where looking costs a wait, torch says it its way.
        """
        # Tensors of other types, as torch's fake ones, have no numbers to look at.
        watched = type(positions) is Tensor and positions.device.type == "cpu" and not torch.compiler.is_compiling()
        if watched and positions.numel() and int(positions[:, -1].max()) >= self.num_positions:
            raise ValueError(
                f"position {int(positions.max())} has no row: positions are learned up to max_position_embeddings, "
                f"{self.num_positions}, padding counted"
            )
        return functional.embedding(positions + self.offset if self.offset else positions, self.weight)

    def extra_repr(self) -> str:
        return f"num_positions={self.num_positions}, offset={self.offset}, width={self.weight.shape[-1]}"


class Sinusoids(nn.Module):
    """(positions (B, S), x) -> sines and cosines (B, S, D) in the dtype of x, alternating."""

    def __init__(self, op: ops.Sinusoids, width: int) -> None:
        super().__init__()
        self.frequencies = ops.sinusoid_frequencies(op.base, width)

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        angles_BSR = positions.unsqueeze(-1).float() * numbers(self.frequencies, positions)
        return torch.stack((angles_BSR.sin(), angles_BSR.cos()), -1).flatten(-2).to(x.dtype)

    def extra_repr(self) -> str:
        return f"width={2 * len(self.frequencies)}"


def learned_positions(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.LearnedPositions)
    module = LearnedPositions(node.op)
    context.register(module, node.params["weight"], "weight")
    return module


def sinusoids(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.Sinusoids)
    return Sinusoids(node.op, node.inputs[1].width)


def index_tokens(x: Tensor) -> Tensor:
    """(batch, tokens, …) -> 0, 1, 2, … (1, tokens)."""
    return torch.arange(x.shape[1], device=x.device).unsqueeze(0)


def token_index(node: Node, context: Context) -> Function:
    return Function(index_tokens)
