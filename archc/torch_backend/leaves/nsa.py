"""Native sparse attention: the compressed branch, and the selected one that reads the blocks it scores best."""

# Shape suffixes: B batch, S new tokens, T rows, R compressed rows, J blocks, N query heads, K key-value heads, G = N / K,
# H key width, V value width, l rows of a compressed block.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import nsa as ops
from archc.torch_backend.context import Context, Function
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
from archc.torch_backend.twins.attention import twin_of
from archc.torch_backend.twins.nsa import shares_twin

Shares = Callable[..., tuple[Tensor, Tensor]]


def attend_with_shares(
    q_BNSH: Tensor, k_BKRH: Tensor, v_BKRV: Tensor, seen: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(output (B, N, S, V), shares summed over the heads of a group (B, K, S, R), float32). Who sees no row gets zeros."""
    batch, heads, seq, _ = q_BNSH.shape
    kv_heads, rows = k_BKRH.shape[1], k_BKRH.shape[2]
    group = heads // kv_heads
    q_BKgH = q_BNSH.reshape(batch, kv_heads, group * seq, -1)
    scores = torch.matmul(q_BKgH, k_BKRH.transpose(-1, -2)).view(batch, kv_heads, group, seq, rows) * scale
    scores = scores if scores.dtype == torch.float64 else scores.float()
    hidden = ~seen.unsqueeze(1)
    # A finite number, so that a row of which nothing is seen has no NaN, in its gradient either.
    shares = scores.masked_fill(hidden, -1e30).softmax(-1).masked_fill(hidden, 0.0)
    out = torch.matmul(shares.to(v_BKRV.dtype).view(batch, kv_heads, group * seq, rows), v_BKRV)
    return out.view(batch, heads, seq, -1), shares.sum(2)


def block_scores(share_BKSR: Tensor, *, blocks: int, per_block: int, per_row: int) -> Tensor:
    """Scores of the selected branch's blocks, (B, K, S, J): a compressed block counts once a stride that it shares with one.

    A block is ``per_block`` strides long and a compressed block ``per_row``.
    """
    strides = blocks * per_block
    padded = functional.pad(share_BKSR, (per_row - 1, strides - share_BKSR.shape[-1]))
    over = padded[..., :strides]
    for number in range(1, per_row):
        over = over + padded[..., number : number + strides]
    return over.unflatten(-1, (blocks, per_block)).sum(-1)


class NativeSparseAttention(nn.Module):
    """(compressed, selected) branches. All states are written in place.

    Many tokens go through masks over all rows, one token reads the rows of its chosen blocks only.
    """

    key_position: nn.Parameter
    value_position: nn.Parameter

    def __init__(self, op: ops.NativeSparseAttention, twin: str | None) -> None:
        super().__init__()
        self.key_dim, self.value_dim, self.scale = op.key_dim, op.value_dim, op.scale
        self.block, self.stride = op.compress_block_size, op.compress_stride
        self.select_block, self.count = op.select_block_size, op.num_selected_blocks
        self.initial, self.local = op.num_initial_blocks, op.num_local_blocks
        self.shares: Shares = attend_with_shares if twin is None else shares_twin(twin)
        self.kernel: Callable[..., Tensor] = attend if twin is None else twin_of(twin)  # type: ignore[arg-type]

    def forward(
        self,
        q: Tensor,
        compress_k: Tensor,
        compress_v: Tensor,
        k: Tensor,
        v: Tensor,
        step: Step | None = None,
        compressed_key: Tensor | None = None,
        compressed_value: Tensor | None = None,
        pending_key: Tensor | None = None,
        pending_value: Tensor | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        q_BNSH, k_BKTH, v_BKTV = to_heads(q, self.key_dim), to_heads(k, self.key_dim), to_heads(v, self.value_dim)
        small_k = self._compressed("key", to_heads(compress_k, self.key_dim), step, compressed_key, pending_key)
        small_v = self._compressed("value", to_heads(compress_v, self.value_dim), step, compressed_value, pending_value)
        if key is not None and value is not None:
            assert step is not None, "a cache needs a step"
            write_rows(key, k_BKTH, step)
            write_rows(value, v_BKTV, step)
            if step.past > 0:
                total = step.past + q_BNSH.shape[2]
                k_BKTH, v_BKTV = key[:, :, :total].to(q.dtype), value[:, :, :total].to(q.dtype)
        at_BS = positions_of(step, q_BNSH)
        batch, heads, seq, _ = q_BNSH.shape
        elements = batch * heads * small_k.shape[2] + batch * k_BKTH.shape[1] * k_BKTH.shape[2]
        few = seq == 1 and key is not None

        def one(slab: slice) -> tuple[Tensor, Tensor]:
            return self._branches(q_BNSH[:, :, slab], (small_k, small_v), (k_BKTH, v_BKTV), at_BS[:, slab], few=few)

        compressed, selected = in_slabs(seq, elements, one)
        return from_heads(compressed), from_heads(selected)

    def _branches(
        self, q_BNSH: Tensor, small: tuple[Tensor, Tensor], full: tuple[Tensor, Tensor], at_BS: Tensor, *, few: bool
    ) -> tuple[Tensor, Tensor]:
        k_BKTH, v_BKTV = full
        last = torch.arange(small[0].shape[2], device=at_BS.device) * self.stride + self.block - 1
        compressed, share_BKSR = self.shares(q_BNSH, *small, visible(at_BS, last.unsqueeze(0)), self.scale)
        rows = k_BKTH.shape[2]
        blocks = ceil_div(rows, self.select_block)
        if blocks <= self.count and q_BNSH.shape[2] == rows:
            # Nothing was before, and the kernel knows a causal mask. `True if … else False`: see Attention.
            causal = True if rows > 1 else False  # noqa: SIM210
            return compressed, self.kernel(q_BNSH, k_BKTH, v_BKTV, scale=self.scale, causal=causal)
        if blocks <= self.count:
            # Every block is chosen, so the branch is causal attention.
            seen = visible(at_BS, torch.arange(rows, device=at_BS.device).unsqueeze(0))
            return compressed, self.kernel(q_BNSH, k_BKTH, v_BKTV, scale=self.scale, mask=seen)
        with torch.no_grad():
            score_BKSJ = block_scores(
                share_BKSR,
                blocks=blocks,
                per_block=self.select_block // self.stride,
                per_row=self.block // self.stride,
            )
            chosen = choose(score_BKSJ, at_BS, self.select_block, self.count, initial=self.initial, local=self.local)
        if few:
            row, seen = rows_of_one(chosen, at_BS, self.select_block, rows)
            k_BKTH, v_BKTV = taken_rows(k_BKTH, row), taken_rows(v_BKTV, row)
        else:
            seen = rows_mask(chosen, at_BS, self.select_block, rows)
        return compressed, self._by_group(q_BNSH, k_BKTH, v_BKTV, seen)

    def _by_group(self, q_BNSH: Tensor, k_BKTH: Tensor, v_BKTV: Tensor, seen_BKST: Tensor) -> Tensor:
        """Attention under a mask a key-value head, whose heads become sequences: no mask is copied for a query head."""
        batch, heads, seq, _ = q_BNSH.shape
        kv_heads = k_BKTH.shape[1]
        q = q_BNSH.reshape(batch * kv_heads, heads // kv_heads, seq, -1)
        k, v = (x.reshape(batch * kv_heads, 1, x.shape[2], -1) for x in (k_BKTH, v_BKTV))
        mask = seen_BKST.reshape(batch * kv_heads, 1, seq, -1)
        return self.kernel(q, k, v, scale=self.scale, mask=mask).reshape(batch, heads, seq, -1)

    def _compressed(
        self, name: str, new_BKSH: Tensor, step: Step | None, cache: Tensor | None, pending: Tensor | None
    ) -> Tensor:
        """Rows of all blocks so far, (B, K, R, H): those that become complete are made, and what later ones need is kept."""
        seq, waiting = new_BKSH.shape[2], self.block - 1
        if cache is None or pending is None:
            return self._map(name, self._windows(new_BKSH, 0, self._rows(seq)))
        assert step is not None, "a cache needs a step"
        held = self._rows(step.past + seq)
        joined = torch.cat((pending.to(new_BKSH.dtype), new_BKSH), 2)
        if step.start is None or step.new is None:
            total = step.past + seq
            if seq == 1:
                # What waits and the new row are one block: a question of host numbers, so that decoding has two graphs at most.
                if total >= self.block and (total - self.block) % self.stride == 0:
                    cache[:, :, held - 1 : held] = self._map(name, joined.unsqueeze(2)).to(cache.dtype)
                pending.copy_(joined[:, :, 1:])
                return cache[:, :, :held].to(new_BKSH.dtype)
            first = self._rows(step.past)
            fresh = self._map(name, self._windows(joined, first * self.stride - step.past + waiting, held - first))
            cache[:, :, first:held] = fresh.to(cache.dtype)
            pending.copy_(joined[:, :, seq:])
            return fresh if step.past == 0 else cache[:, :, :held].to(new_BKSH.dtype)
        # The number of blocks before the new tokens, for a row each.
        first_B = torch.div(step.start - self.block, self.stride, rounding_mode="floor").add(1).clamp(min=0)
        count = ceil_div(seq, self.stride)
        at = new_block_rows(first_B, step.start, count=count, stride=self.stride, block=self.block, held=waiting).clamp(
            max=joined.shape[2] - 1
        )
        row_BR = at.flatten(1).unsqueeze(1).expand(-1, joined.shape[1], -1)
        write_blocks(cache, self._map(name, taken_rows(joined, row_BR).unflatten(2, (count, -1))), first_B)
        kept = step.new.unsqueeze(1) + torch.arange(waiting, device=joined.device)
        pending.copy_(taken_rows(joined, kept.unsqueeze(1).expand(-1, joined.shape[1], -1)))
        return cache[:, :, :held].to(new_BKSH.dtype)

    def _rows(self, tokens: int) -> int:
        """Compressed rows of so many tokens."""
        return max(0, (tokens - self.block) // self.stride + 1)

    def _windows(self, rows_BKSH: Tensor, start: int, count: int) -> Tensor:
        """``count`` blocks from row ``start`` on, (B, K, n, l, H)."""
        if count == 0:
            return rows_BKSH.new_zeros(*rows_BKSH.shape[:2], 0, self.block, rows_BKSH.shape[3])
        end = start + (count - 1) * self.stride + self.block
        return rows_BKSH[:, :, start:end].unfold(2, self.block, self.stride).transpose(-1, -2)

    def _map(self, name: str, rows_BKnlH: Tensor) -> Tensor:
        flat = (rows_BKnlH + getattr(self, f"{name}_position")).flatten(-2)
        return self.get_submodule(f"{name}_down")(functional.silu(self.get_submodule(f"{name}_up")(flat)))

    def extra_repr(self) -> str:
        return (
            f"key_dim={self.key_dim}, value_dim={self.value_dim}, compress {self.block} every {self.stride}, "
            f"select {self.count} of {self.select_block}"
        )


def native_sparse_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.NativeSparseAttention)
    module = NativeSparseAttention(node.op, context.twin)
    for role, param in node.params.items():
        if role.endswith("_position"):
            context.register(module, param, role)
        else:
            module.add_module(role, context.linear(param))
    return module


def gate_heads(x: Tensor, gate: Tensor) -> Tensor:
    """Each head of x (B, S, N x V) times its number (B, S, N)."""
    return (x.unflatten(-1, (gate.shape[-1], -1)) * gate.unsqueeze(-1)).flatten(-2)


def head_gate(node: Node, context: Context) -> Function:
    return Function(gate_heads)
