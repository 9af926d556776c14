"""Disentangled attention, and the table of relative positions that a stack's layers share."""

# Shape suffixes: B batch, S queries, T keys, N heads, H key width, V value width, P relative positions within reach.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import disentangled as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.attention import from_heads, to_heads
from archc.torch_backend.leaves.masked_attention import seen_of
from archc.torch_backend.leaves.softmax import while_alive
from archc.torch_backend.twins.disentangled import twin_of

Scored = Callable[..., Tensor]


class RelativeEmbeddings(nn.Module):
    """The table (1, rows, width), for every layer's projections."""

    weight: nn.Parameter

    def forward(self) -> Tensor:
        # Not a view: torch's module tracker trips over views of parameters where nothing is recorded.
        return torch.stack((self.weight,))

    def extra_repr(self) -> str:
        return "{}, {}".format(*self.weight.shape)


class DisentangledAttention(nn.Module):
    """Contents and relative positions meet in products over all positions within reach; each pair then takes its own."""

    def __init__(self, op: ops.DisentangledAttention, attend: Scored) -> None:
        super().__init__()
        self.key_dim, self.value_dim, self.scale = op.key_dim, op.value_dim, op.scale
        self.max_distance, self.has_padding = op.max_distance, op.has_padding
        self.has_position_keys, self.has_position_queries = op.has_position_keys, op.has_position_queries
        self.attend = attend

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *further: Tensor | None) -> Tensor:
        """``further`` are the padding, where the op has it, and the tables of position keys and queries."""
        padding, *tables = further if self.has_padding else (None, *further)
        q, k, v = to_heads(q, self.key_dim), to_heads(k, self.key_dim), to_heads(v, self.value_dim)
        reach = min(q.shape[2], self.max_distance)
        index_ST = while_alive(
            ("relative positions", q.shape[2], reach, q.device), lambda: relative_index(q.shape[2], reach, q.device)
        )
        near = [self._near(table, reach) for table in tables]
        keys = near[0] if self.has_position_keys else None
        queries = near[-1] if self.has_position_queries else None
        return from_heads(self.attend(q, k, v, keys, queries, index_ST, scale=self.scale, seen=seen_of(padding)))

    def _near(self, table: Tensor | None, reach: int) -> Tensor:
        """The rows of a table that a text of ``reach`` tokens meets, by head, (1, N, P, H)."""
        assert table is not None
        rows = table[:, self.max_distance - reach : self.max_distance + reach]
        return to_heads(rows, self.key_dim)

    def extra_repr(self) -> str:
        return f"key_dim={self.key_dim}, scale={self.scale:.6g}, max_distance={self.max_distance}"


def relative_index(tokens: int, reach: int, device: torch.device) -> Tensor:
    """Row of each pair's relative position among those within reach, (S, T) int64."""
    at = torch.arange(tokens, device=device)
    return (at.unsqueeze(1) - at).clamp(-reach, reach - 1) + reach


def attend(
    q_BNSH: Tensor,
    k_BNTH: Tensor,
    v_BNTV: Tensor,
    keys_1NPH: Tensor | None,
    queries_1NPH: Tensor | None,
    index_ST: Tensor,
    *,
    scale: float,
    seen: Tensor | None,
) -> Tensor:
    """(B, N, S, V); softmax in float32.

    Heads come before sequences, so that a table, which all sequences share, meets them in one product and isn't repeated.
    """
    q_NBSH, k_NBTH = (q_BNSH * scale).transpose(0, 1).contiguous(), k_BNTH.transpose(0, 1).contiguous()
    scores = q_NBSH @ k_NBTH.transpose(-1, -2)
    if keys_1NPH is not None:
        met = _met(q_NBSH, keys_1NPH)
        scores = scores + _Taken.apply(met, index_ST.expand_as(scores))
    if queries_1NPH is not None:
        met = _met(k_NBTH, queries_1NPH * scale)
        scores = scores + _Taken.apply(met, index_ST.t().expand_as(scores)).transpose(-1, -2)
    if seen is not None:
        scores = scores.masked_fill(~seen.transpose(0, 1), float("-inf"))
    return (scores.float().softmax(-1).to(v_BNTV.dtype) @ v_BNTV.transpose(0, 1)).transpose(0, 1)


def _met(x_NBSH: Tensor, table_1NPH: Tensor) -> Tensor:
    """Products of rows and a table of relative positions, (N, B, S, P)."""
    met = torch.bmm(x_NBSH.flatten(1, 2), table_1NPH[0].transpose(-1, -2))
    return met.view(*x_NBSH.shape[:3], -1)


class _Taken(torch.autograd.Function):
    """``x.gather(-1, index)`` whose backward keeps the index alone; torch's would keep x for its shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.width = x.shape[-1]
        return x.gather(-1, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        grad = grads[0]
        return grad.new_zeros(*grad.shape[:-1], ctx.width).scatter_add_(-1, index, grad), None


def relative_embeddings(node: Node, context: Context) -> nn.Module:
    module = RelativeEmbeddings()
    context.register(module, node.params["weight"], "weight")
    return module


def disentangled_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.DisentangledAttention)
    return DisentangledAttention(node.op, attend if context.twin is None else twin_of(context.twin))
