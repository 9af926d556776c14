"""Hyper-connections: what a branch reads of several residual streams, and how they mix behind it."""

# Shape suffixes: B batch, S tokens, n streams, D width of one.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import hyper_connection as ops
from archc.torch_backend.context import Context, Function


class _Mixer(nn.Module):
    """A linear map of the normed streams in float32; the twin's in float64."""

    fn: nn.Parameter
    base: nn.Parameter
    scale: nn.Parameter

    def __init__(self, num_streams: int, eps: float, norm_eps: float, twin: str | None) -> None:
        super().__init__()
        self.num_streams, self.eps, self.norm_eps = num_streams, eps, norm_eps
        self.wide = torch.float32 if twin is None else torch.float64

    def mapped(self, wide: Tensor) -> Tensor:
        """(B, S, numbers) of the streams in float32: the norm is one factor a token, so it may stand behind the map."""
        factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.norm_eps)
        return functional.linear(wide, self.fn.to(self.wide)) * factor

    def read(self, wide: Tensor, numbers: Tensor) -> Tensor:
        """The streams (B, S, n x D) as one, each times sigmoid of its number, and eps: (B, S, D)."""
        pre_BSn = torch.sigmoid(numbers) + self.eps
        return torch.matmul(pre_BSn.unsqueeze(-2), wide.unflatten(-1, (self.num_streams, -1))).squeeze(-2)

    def extra_repr(self) -> str:
        return f"{self.num_streams} streams of {self.fn.shape[1] // self.num_streams}"


class HyperConnection(_Mixer):
    """(x, post, comb) of streams side by side: (B, S, D), and in float32 (B, S, n) and (B, S, n x n)."""

    def __init__(self, op: ops.HyperConnection, twin: str | None) -> None:
        super().__init__(op.num_streams, op.eps, op.norm_eps, twin)
        self.sinkhorn_iters = op.sinkhorn_iters

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count, wide = self.num_streams, streams.to(self.wide)
        sizes = (count, count, count * count)
        pre, post, comb = (
            part * scale + base
            for part, scale, base in zip(
                self.mapped(wide).split(sizes, -1),
                self.scale.to(self.wide).unbind(),
                self.base.to(self.wide).split(sizes),
                strict=True,
            )
        )
        comb = comb.unflatten(-1, (count, count)).softmax(-1) + self.eps
        comb = comb / (comb.sum(-2, keepdim=True) + self.eps)
        for _ in range(self.sinkhorn_iters - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + self.eps)
            comb = comb / (comb.sum(-2, keepdim=True) + self.eps)
        read = self.read(wide, pre).to(streams.dtype)
        return read, (2 * torch.sigmoid(post)).float(), comb.flatten(-2).float()


class HyperHead(_Mixer):
    """Streams side by side as one: (B, S, n x D) -> (B, S, D)."""

    def forward(self, streams: Tensor) -> Tensor:
        wide = streams.to(self.wide)
        numbers = self.mapped(wide) * self.scale.to(self.wide) + self.base.to(self.wide)
        return self.read(wide, numbers).to(streams.dtype)


def mix(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor, *, num_streams: int) -> Tensor:
    """``stream_k = post_k y + sum_j comb_jk stream_j``, side by side: (B, S, n x D)."""
    comb_BSkj = comb.unflatten(-1, (num_streams, num_streams)).transpose(-1, -2).to(streams.dtype)
    mixed = torch.matmul(comb_BSkj, streams.unflatten(-1, (num_streams, -1)))
    return (mixed + post.to(streams.dtype).unsqueeze(-1) * y.unsqueeze(-2)).flatten(-2)


def _held(module: nn.Module, node: Node, context: Context) -> nn.Module:
    for role, param in node.params.items():
        context.register(module, param, role)
    return module


def hyper_connection(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.HyperConnection)
    return _held(HyperConnection(node.op, context.twin), node, context)


def hyper_head(node: Node, context: Context) -> nn.Module:
    op = node.op
    assert isinstance(op, ops.HyperHead)
    return _held(HyperHead(op.num_streams, op.eps, op.norm_eps, context.twin), node, context)


def hyper_mix(node: Node, context: Context) -> Function:
    assert isinstance(node.op, ops.HyperMix)
    return Function(mix, {"num_streams": node.op.num_streams})
