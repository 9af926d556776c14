"""Block-sparse attention: blocks between the ends meet five blocks and the drawn ones, the ends meet everything."""

# Shape suffixes: B batch, N heads, S columns, C blocks, W columns a block, H head width, T keys.

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import block_sparse as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.attention import from_heads, to_heads
from archc.torch_backend.leaves.masked_attention import seen_of
from archc.torch_backend.leaves.softmax import attend
from archc.torch_backend.twins.attention import dense

Attend = Callable[..., Tensor]


class BlockSparseAttention(nn.Module):
    """Keeps nothing; memory grows with the number of blocks, not with its square."""

    def __init__(self, op: ops.BlockSparseAttention, kernel: Attend, *, is_blocked: bool = True) -> None:
        super().__init__()
        self.op, self.kernel, self.is_blocked = op, kernel, is_blocked

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Tensor:
        op = self.op
        q, k, v = (to_heads(x, op.head_dim) for x in (q, k, v))
        tokens = q.shape[2]
        if tokens <= op.full_tokens:
            return from_heads(self.kernel(q, k, v, scale=op.scale, mask=seen_of(padding)))
        valid = q.new_ones(q.shape[0], tokens, dtype=torch.bool) if padding is None else padding.bool()
        return from_heads(self._blocked(q, k, v, valid) if self.is_blocked else self._one_by_one(q, k, v, valid))

    def _blocked(self, q: Tensor, k: Tensor, v: Tensor, valid_BS: Tensor) -> Tensor:
        op = self.op
        batch, heads, tokens, dim = q.shape
        size, rest = op.block_size, -tokens % op.block_size
        count = (tokens + rest) // size
        q, k, v = (functional.pad(x, (0, 0, 0, rest)) for x in (q, k, v))
        valid = functional.pad(valid_BS, (0, rest))
        blocks_of_q, blocks_of_k, blocks_of_v = (x.view(batch, heads, count, size, dim) for x in (q, k, v))
        ends = self.kernel(
            torch.cat((q[:, :, :size], q[:, :, -size:]), 2), k, v, scale=op.scale, mask=valid[:, None, None]
        )
        keys, values = (self._met(x) for x in (blocks_of_k, blocks_of_v))
        mask = self._mask(valid.view(batch, 1, count, size, 1), q.dtype)
        between = self.kernel(
            blocks_of_q[:, :, 1:-1].transpose(1, 2).flatten(0, 1),
            keys.transpose(1, 2).flatten(0, 1),
            values.transpose(1, 2).flatten(0, 1),
            scale=op.scale,
            mask=mask.transpose(1, 2).flatten(0, 1),
        )
        middle = between.view(batch, count - 2, heads, size, dim).transpose(1, 2).reshape(batch, heads, -1, dim)
        return torch.cat((ends[:, :, :size], middle, ends[:, :, size:]), 2)[:, :, :tokens]

    def _met(self, x_BNCWH: Tensor) -> Tensor:
        """What each block between the ends meets: first, neighbours and itself, last, drawn ones, (B, N, C - 2, T, H)."""
        count = x_BNCWH.shape[2]
        first, last = (x_BNCWH[:, :, at].unsqueeze(2).expand(-1, -1, count - 2, -1, -1) for at in (0, -1))
        parts = [first, x_BNCWH[:, :, :-2], x_BNCWH[:, :, 1:-1], x_BNCWH[:, :, 2:], last]
        if self.op.drawn:
            plan = torch.tensor(self._plan(count), device=x_BNCWH.device)
            head = torch.arange(self.op.num_heads, device=x_BNCWH.device).view(-1, 1, 1)
            some = x_BNCWH.expand(-1, self.op.num_heads, -1, -1, -1)[:, head, plan]
            parts.append(some.flatten(3, 4))
            parts = [part.expand(-1, self.op.num_heads, -1, -1, -1) for part in parts]
        return torch.cat(parts, 3)

    def _plan(self, count: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
        op = self.op
        assert op.seed is not None
        return ops.random_plan(count, op.num_heads, op.num_random_blocks, op.seed)

    def _mask(self, valid_B1CW1: Tensor, dtype: torch.dtype) -> Tensor:
        """What is added to scores, (B, N or 1, C - 2, 1, T): an end that is a neighbour counts once, the first more."""
        count, size = valid_B1CW1.shape[2:4]
        seen = self._met(valid_B1CW1).squeeze(-1)
        at = torch.arange(seen.shape[-1], device=seen.device) // size
        block = torch.arange(1, count - 1, device=seen.device).unsqueeze(-1)
        twice = ((block == 1) & (at == 1)) | ((block == count - 2) & (at == 3))
        more = math.log1p(self.op.num_random_blocks) if self.op.seed is None else 0.0
        weight = torch.where(at == 0, more, 0.0).to(dtype)
        return torch.where(seen & ~twice, weight, float("-inf")).to(dtype).unsqueeze(-2)

    def _one_by_one(self, q: Tensor, k: Tensor, v: Tensor, valid_BS: Tensor) -> Tensor:
        """The readable form: each head's query with the keys of the blocks that it sees, one after the other."""
        op, tokens = self.op, q.shape[2]
        count = -(-tokens // op.block_size)
        plan = self._plan(count) if op.drawn else None
        at = torch.arange(tokens, device=q.device) // op.block_size
        more = math.log1p(op.num_random_blocks) if op.seed is None else 0.0
        out = torch.zeros_like(v)
        for b in range(q.shape[0]):
            for n in range(q.shape[1]):
                for i in range(tokens):
                    block = i // op.block_size
                    is_end = block in (0, count - 1)
                    near = {
                        0,
                        block - 1,
                        block,
                        block + 1,
                        count - 1,
                        *(() if plan is None or is_end else plan[n][block - 1]),
                    }
                    index = [j for j in range(tokens) if valid_BS[b, j] and (is_end or int(at[j]) in near)]
                    added = [0.0 if is_end or int(at[j]) else more for j in index]
                    row = slice(b, b + 1), slice(n, n + 1), slice(i, i + 1)
                    keys, values = (x[b : b + 1, n : n + 1][:, :, index] for x in (k, v))
                    mask = q.new_tensor(added).view(1, 1, 1, -1)
                    out[row] = self.kernel(q[row], keys, values, scale=op.scale, mask=mask)
        return out

    def extra_repr(self) -> str:
        op = self.op
        return f"head_dim={op.head_dim}, block_size={op.block_size}, num_random_blocks={op.num_random_blocks}"


def block_sparse_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.BlockSparseAttention)
    if context.twin is None:
        return BlockSparseAttention(node.op, attend)
    return BlockSparseAttention(node.op, dense, is_blocked=context.twin == "dense")
