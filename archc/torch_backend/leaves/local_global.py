"""Local windows and global tokens, in blocks of half a window: no more than a few rows of keys meet a query."""

# Shape suffixes: B batch, N heads, S tokens (padded to whole blocks), C blocks, W tokens a block, H head width, G global tokens.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import local_global as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.attention import from_heads, to_heads
from archc.torch_backend.leaves.softmax import added, attend, while_alive
from archc.torch_backend.twins.attention import dense

Attend = Callable[..., Tensor]


class FirstTokens(nn.Module):
    """The first tokens of each row, (B, count, D)."""

    def __init__(self, op: ops.FirstTokens) -> None:
        super().__init__()
        self.count = op.count

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        places_BG = first_places(x, padding, self.count)
        return x.gather(1, places_BG.unsqueeze(-1).expand(-1, -1, x.shape[-1]))

    def extra_repr(self) -> str:
        return f"count={self.count}"


def first_places(x: Tensor, padding_BS: Tensor | None, count: int) -> Tensor:
    """Where the first ``count`` tokens of each row stand, (B, count) int64."""
    batch, tokens = x.shape[:2]
    start = torch.zeros(batch, dtype=torch.int64, device=x.device) if padding_BS is None else padding_BS.argmax(1)
    return (start.unsqueeze(1) + torch.arange(count, device=x.device)).clamp(max=tokens - 1)


class LocalGlobalAttention(nn.Module):
    """Blocks of queries against three blocks of keys and the global ones; global queries against everything."""

    def __init__(self, op: ops.LocalGlobalAttention, kernel: Attend, *, is_blocked: bool = True) -> None:
        super().__init__()
        self.head_dim, self.scale, self.side, self.num_global = op.head_dim, op.scale, op.side, op.num_global
        self.has_padding, self.has_global_projections = op.has_padding, op.has_global_projections
        self.kernel, self.is_blocked = kernel, is_blocked

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *further: Tensor | None) -> Tensor:
        """``further`` are the padding, where the op has it, and queries, keys and values of global tokens."""
        padding, *projected = further if self.has_padding else (None, *further)
        places = first_places(q, padding, self.num_global)
        valid = q.new_ones(q.shape[:2], dtype=torch.bool) if padding is None else padding.bool()
        q, k, v = (to_heads(x, self.head_dim) for x in (q, k, v))
        local = self._local(q, k, v, valid, places, padding)
        if self.num_global == 0:
            return from_heads(local)
        if self.has_global_projections:
            global_q, global_k, global_v = (to_heads(x, self.head_dim) for x in projected if x is not None)
        else:
            global_q, global_k, global_v = _rows(q, places), k, v
        seen = None if padding is None else valid[:, None, None]
        found = self.kernel(global_q, global_k, global_v, scale=self.scale, mask=seen)
        index = places[:, None, :, None].expand_as(found)
        return from_heads(local.scatter(2, index, found))

    def _local(
        self, q: Tensor, k: Tensor, v: Tensor, valid_BS: Tensor, places_BG: Tensor, padding: Tensor | None
    ) -> Tensor:
        """What every token sees as a local one, (B, N, S, H)."""
        if not self.is_blocked:
            is_global = torch.zeros_like(valid_BS).scatter(1, places_BG, True)
            return self._one_by_one(q, k, v, valid_BS, is_global)
        batch, heads, tokens, dim = q.shape
        side = self.side
        rest = -tokens % side
        blocks = (tokens + rest) // side
        # Padded as tokens lie in memory: the kernel writes its output as queries are laid out, and nothing is copied.
        q_BSNH = functional.pad(q.transpose(1, 2), (0, 0, 0, 0, 0, rest))
        q_BNCWH = q_BSNH.transpose(1, 2).view(batch, heads, blocks, side, dim)
        keys, values = (
            torch.cat((_windows(x, side, rest), _rows(x, places_BG).unsqueeze(2).expand(-1, -1, blocks, -1, -1)), 3)
            for x in (k, v)
        )
        key = ("local and global", side, self.num_global, batch, tokens, q.device, q.dtype)
        mask = while_alive(key, lambda: self._mask(valid_BS, places_BG, q.dtype), of=padding)
        # Blocks are a batch of their own, so that no kernel sees more than one block of queries.
        found = self.kernel(
            q_BNCWH.transpose(1, 2).flatten(0, 1),
            keys.transpose(1, 2).flatten(0, 1),
            values.transpose(1, 2).flatten(0, 1),
            scale=self.scale,
            mask=mask,
        )
        found = found.view(batch, blocks, heads, side, dim).transpose(1, 2).reshape(batch, heads, -1, dim)
        return found[:, :, :tokens]

    def _mask(self, valid_BS: Tensor, places_BG: Tensor, dtype: torch.dtype) -> Tensor:
        """What is added to the scores of each block's tokens, (B x C, 1, W, 3W + G)."""
        side, device = self.side, valid_BS.device
        rest = -valid_BS.shape[1] % side
        is_global = torch.zeros_like(valid_BS).scatter(1, places_BG, True)
        # A row with fewer tokens than there are global ones repeats a place, which then counts once.
        global_valid = torch.arange(self.num_global, device=device) < valid_BS.sum(1, keepdim=True)
        near = functional.pad(valid_BS & ~is_global, (side, side + rest)).unfold(1, 3 * side, side)
        # A row of padding may have nothing but padding in reach; it sees itself, so that none is empty.
        seen = (near.unsqueeze(2) & band_of(side, device)) | _itself(side, device)
        seen = torch.cat((seen, global_valid[:, None, None].expand(-1, seen.shape[1], side, -1)), -1)
        return added(seen.flatten(0, 1).unsqueeze(1), dtype)

    def _one_by_one(self, q: Tensor, k: Tensor, v: Tensor, valid_BS: Tensor, is_global_BS: Tensor) -> Tensor:
        """The readable form: each query that is no global one against just what it sees."""
        at = torch.arange(q.shape[2], device=q.device)
        near = (at.unsqueeze(1) - at).abs() <= self.side
        out = torch.zeros_like(v)
        for b in range(q.shape[0]):
            for i in range(q.shape[2]):
                if is_global_BS[b, i]:
                    continue
                index = ((near[i] | is_global_BS[b]) & valid_BS[b] | (at == i)).nonzero().flatten()
                row = slice(b, b + 1), slice(None), slice(i, i + 1)
                out[row] = self.kernel(q[row], k[b : b + 1, :, index], v[b : b + 1, :, index], scale=self.scale)
        return out

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, window={2 * self.side}, num_global={self.num_global}"


def _rows(x_BNSH: Tensor, places_BG: Tensor) -> Tensor:
    """The rows at places, (B, N, G, H)."""
    # By index and not by gather, which would keep all of x for backward.
    batch = torch.arange(x_BNSH.shape[0], device=x_BNSH.device).unsqueeze(1)
    return x_BNSH[batch, :, places_BG].transpose(1, 2)


def _windows(x_BNSH: Tensor, side: int, rest: int) -> Tensor:
    """Three blocks of rows around each block, (B, N, C, 3W, H): a view of the padded rows."""
    return functional.pad(x_BNSH, (0, 0, side, side + rest)).unfold(2, 3 * side, side).transpose(-1, -2)


def band_of(side: int, device: torch.device) -> Tensor:
    """Which of three blocks of keys a block's queries see, (W, 3W) bool."""
    query, key = torch.arange(side, device=device).unsqueeze(1), torch.arange(3 * side, device=device) - side
    return (query - key).abs() <= side


def _itself(side: int, device: torch.device) -> Tensor:
    return torch.arange(side, device=device).unsqueeze(1) == torch.arange(3 * side, device=device) - side


def first_tokens(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.FirstTokens)
    return FirstTokens(node.op)


def local_global_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.LocalGlobalAttention)
    if context.twin is None:
        return LocalGlobalAttention(node.op, attend)
    return LocalGlobalAttention(node.op, dense, is_blocked=context.twin == "dense")
