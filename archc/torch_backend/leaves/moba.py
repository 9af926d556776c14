"""Mixture of block attention: each query head reads its own block and the earlier ones whose mean key fits it best."""

# Shape suffixes: B batch, S new tokens, T rows, J blocks, N query heads, K key-value heads, H width.

from __future__ import annotations

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import moba as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.attention import from_heads, to_heads
from archc.torch_backend.leaves.blocks import (
    ceil_div,
    choose,
    in_slabs,
    new_block_rows,
    positions_of,
    rows_mask,
    rows_of_one,
    taken_rows,
    write_blocks,
)
from archc.torch_backend.leaves.caches import write_rows
from archc.torch_backend.leaves.softmax import attend, visible
from archc.torch_backend.step import Step
from archc.torch_backend.twins.moba import by_query_head, gates_twin


def gates(q_BNSH: Tensor, mean_BKJH: Tensor, at_BS: Tensor, block: int) -> Tensor:
    """Products of queries and mean keys, (B, N, S, J), float32 at least."""
    batch, heads, seq, _ = q_BNSH.shape
    kv_heads = mean_BKJH.shape[1]
    q_BKgH = q_BNSH.reshape(batch, kv_heads, heads // kv_heads * seq, -1)
    product = torch.matmul(q_BKgH, mean_BKJH.transpose(-1, -2)).view(batch, heads, seq, mean_BKJH.shape[2])
    return product if product.dtype == torch.float64 else product.float()


class MixtureOfBlockAttention(nn.Module):
    """MoBA. ``key``, ``value`` and ``block_key``, the mean of each complete block, are written in place.

    Many tokens go through a mask over all rows, one token reads the rows of its chosen blocks only.
    """

    def __init__(self, op: ops.MixtureOfBlockAttention, twin: str | None) -> None:
        super().__init__()
        self.head_dim, self.scale, self.block, self.topk = op.head_dim, op.scale, op.block_size, op.topk
        self.twin = twin
        self.kernel = attend if twin is None else by_query_head(twin)
        self.gates = gates if twin is None else gates_twin(twin)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        step: Step | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        block_key: Tensor | None = None,
    ) -> Tensor:
        q_BNSH, k_BKTH, v_BKTH = (to_heads(x, self.head_dim) for x in (q, k, v))
        if key is None or value is None or block_key is None:
            whole = k_BKTH.shape[2] // self.block
            mean_BKJH = _means(k_BKTH[:, :, : whole * self.block], self.block)
        else:
            assert step is not None, "a cache needs a step"
            write_rows(key, k_BKTH, step)
            write_rows(value, v_BKTH, step)
            total = step.past + k_BKTH.shape[2]
            self._write_means(block_key, key[:, :, :total], k_BKTH.shape[2], step)
            mean_BKJH = block_key[:, :, : total // self.block].to(q.dtype)
            if step.past > 0:
                k_BKTH, v_BKTH = key[:, :, :total].to(q.dtype), value[:, :, :total].to(q.dtype)
        at_BS = positions_of(step, q_BNSH)
        batch, heads, seq, _ = q_BNSH.shape

        def one(slab: slice) -> tuple[Tensor]:
            few = seq == 1 and key is not None
            return (self._attend(q_BNSH[:, :, slab], k_BKTH, v_BKTH, mean_BKJH, at_BS[:, slab], few=few),)

        return from_heads(in_slabs(seq, batch * heads * k_BKTH.shape[2], one)[0])

    def _attend(
        self, q_BNSH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, mean_BKJH: Tensor, at_BS: Tensor, *, few: bool
    ) -> Tensor:
        rows = k_BKTH.shape[2]
        blocks = ceil_div(rows, self.block)
        all_chosen = blocks <= self.topk
        if self.twin is not None or not all_chosen:
            with torch.no_grad():
                # The last block is nobody's earlier one.
                score_BNSJ = self.gates(q_BNSH, mean_BKJH[:, :, : blocks - 1], at_BS, self.block)
                own = score_BNSJ.new_zeros(*score_BNSJ.shape[:-1], 1)
                chosen = choose(torch.cat((score_BNSJ, own), -1), at_BS, self.block, self.topk)
            if few and not all_chosen:
                row, seen = rows_of_one(chosen, at_BS, self.block, rows)
                k, v = (_taken_by_heads(x, row) for x in (k_BKTH, v_BKTH))
                return self.kernel(q_BNSH, k, v, scale=self.scale, mask=seen)
            seen = rows_mask(chosen, at_BS, self.block, rows)
        elif q_BNSH.shape[2] == rows:
            # Nothing was before, and the kernel knows a causal mask. `True if … else False`: see Attention.
            return self.kernel(q_BNSH, k_BKTH, v_BKTH, scale=self.scale, causal=True if rows > 1 else False)  # noqa: SIM210
        else:
            seen = visible(at_BS, torch.arange(rows, device=at_BS.device).unsqueeze(0))
        return self.kernel(q_BNSH, k_BKTH, v_BKTH, scale=self.scale, mask=seen)

    def _write_means(self, cache: Tensor, key_BKTH: Tensor, seq: int, step: Step) -> None:
        """The mean keys of the blocks that become complete, from the cached keys."""
        if step.start is None:
            total = key_BKTH.shape[2]
            if seq == 1:
                # A question of host numbers, so that decoding has two graphs at most.
                if total % self.block == 0:
                    whole = total // self.block
                    cache[:, :, whole - 1 : whole] = _means(key_BKTH[:, :, total - self.block :], self.block)
                return
            first, whole = step.past // self.block, total // self.block
            cache[:, :, first:whole] = _means(key_BKTH[:, :, first * self.block : whole * self.block], self.block)
            return
        first_B, count = step.start // self.block, ceil_div(seq, self.block)
        zero = torch.zeros_like(step.start)
        row = new_block_rows(first_B, zero, count=count, stride=self.block, block=self.block, held=0)
        row_BR = row.clamp(max=key_BKTH.shape[2] - 1).flatten(1).unsqueeze(1).expand(-1, key_BKTH.shape[1], -1)
        write_blocks(cache, _means(taken_rows(key_BKTH, row_BR), self.block), first_B)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, scale={self.scale:.6g}, {self.topk} of {self.block}"


def _means(rows_BKTH: Tensor, block: int) -> Tensor:
    """The mean of each block of rows, (B, K, J, H), summed in float32 at least."""
    blocks = (
        rows_BKTH.unflatten(2, (-1, block)) if rows_BKTH.shape[2] else rows_BKTH.unsqueeze(2).expand(-1, -1, 0, -1, -1)
    )
    wide = blocks if blocks.dtype == torch.float64 else blocks.float()
    return wide.mean(3).to(rows_BKTH.dtype)


def _taken_by_heads(cache_BKTH: Tensor, row_BNR: Tensor) -> Tensor:
    """Rows that each query head takes of its key-value head, (B, N, R, H)."""
    batch, heads, count = row_BNR.shape
    by_group = taken_rows(cache_BKTH, row_BNR.reshape(batch, cache_BKTH.shape[1], -1))
    return by_group.view(batch, heads, count, -1)


def mixture_of_block_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.MixtureOfBlockAttention)
    return MixtureOfBlockAttention(node.op, context.twin)
