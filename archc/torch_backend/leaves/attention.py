"""Softmax attention over its own cache, and latent attention in its two forms."""

# Shape suffixes: B batch, S new tokens, T keys, N query heads, K key-value heads, H key width, V value width, R latent rank.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import attention as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.caches import ring_positions, write_ring, write_rows
from archc.torch_backend.leaves.softmax import attend, visible
from archc.torch_backend.step import Step
from archc.torch_backend.twins.attention import twin_of

Attend = Callable[..., Tensor]


def to_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, S, N x H) -> (B, N, S, H)."""
    return x.view(x.shape[0], x.shape[1], -1, head_dim).transpose(1, 2)


def from_heads(x_BNSH: Tensor) -> Tensor:
    """(B, N, S, H) -> (B, S, N x H)."""
    return x_BNSH.transpose(1, 2).flatten(-2)


class Attention(nn.Module):
    """Causal attention with windows, chunks, sinks and soft caps. ``key`` and ``value`` are caches, written in place."""

    sinks: nn.Parameter | None

    def __init__(self, op: ops.Attention, kernel: Attend) -> None:
        super().__init__()
        self.key_dim, self.value_dim, self.scale = op.key_dim, op.value_dim, op.scale
        self.window, self.chunk, self.soft_cap = op.window, op.chunk, op.soft_cap
        self.kernel = kernel
        self.register_parameter("sinks", None)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        step: Step | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
    ) -> Tensor:
        q, k, v = to_heads(q, self.key_dim), to_heads(k, self.key_dim), to_heads(v, self.value_dim)
        if key is None or value is None:
            return from_heads(self._attend_new(q, k, v))
        assert step is not None, "a cache needs a step"
        if self.window is None and self.chunk is None:
            write_rows(key, k, step)
            write_rows(value, v, step)
            if step.past == 0:
                return from_heads(self._attend_new(q, k, v))
            total = step.past + q.shape[2]
            keys, values = key[:, :, :total].to(q.dtype), value[:, :, :total].to(q.dtype)
            mask = None
            if q.shape[2] > 1 or not step.uniform:
                mask = visible(step.positions, torch.arange(total, device=q.device).unsqueeze(0))
            return from_heads(self._call(q, keys, values, mask))
        return from_heads(self._attend_ring(q, k, v, step, key, value))

    def _attend_new(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """New tokens among themselves, from an empty cache; padding on the right is seen by padding only."""
        seq, reach = q.shape[2], self.window or self.chunk
        if reach is None or seq <= reach:
            # `True if … else False`: a symbolic bool would break a compiled graph.
            return self._call(q, k, v, None, causal=True if seq > 1 else False)  # noqa: SIM210
        positions = torch.arange(seq, device=q.device).unsqueeze(0)
        return self._call(q, k, v, visible(positions, positions, window=self.window, chunk=self.chunk))

    def _attend_ring(self, q: Tensor, k: Tensor, v: Tensor, step: Step, key: Tensor, value: Tensor) -> Tensor:
        rows, seq = key.shape[2], q.shape[2]
        if step.past == 0:
            write_ring(key, k, step)
            write_ring(value, v, step)
            return self._attend_new(q, k, v)
        if step.uniform and seq == 1:
            # The new row takes the slot of the one that just left the window; which slot holds which token is no matter.
            write_ring(key, k, step)
            write_ring(value, v, step)
            held = min(step.past + 1, rows) if self.chunk is None else step.past % rows + 1
            return self._call(q, key[:, :, :held].to(q.dtype), value[:, :, :held].to(q.dtype), None)
        held = min(step.past, rows)
        positions = torch.cat((ring_positions(step.positions[:, :1], rows)[:, :held], step.positions), 1)
        keys = torch.cat((key[:, :, :held].to(k.dtype), k), 2)
        values = torch.cat((value[:, :, :held].to(v.dtype), v), 2)
        write_ring(key, k, step)
        write_ring(value, v, step)
        return self._call(q, keys, values, visible(step.positions, positions, window=self.window, chunk=self.chunk))

    def _call(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
        return self.kernel(
            q, k, v, scale=self.scale, mask=mask, causal=causal, sinks_N=self.sinks, soft_cap=self.soft_cap
        )

    def extra_repr(self) -> str:
        reach = f", window={self.window}" if self.window else f", chunk={self.chunk}" if self.chunk else ""
        return f"key_dim={self.key_dim}, value_dim={self.value_dim}, scale={self.scale:.6g}{reach}"


class LatentAttention(nn.Module):
    """MLA. Adapters put on ``kv_b_proj`` act in the expanded form only, until they are merged into its weight."""

    kv_b_proj: nn.Linear

    def __init__(self, op: ops.LatentAttention, kernel: Attend) -> None:
        super().__init__()
        self.nope_dim, self.rope_dim, self.value_dim = op.nope_dim, op.rope_dim, op.value_dim
        self.kv_lora_rank, self.scale = op.kv_lora_rank, op.scale
        self.kernel = kernel

    def forward(
        self, q: Tensor, latent: Tensor, shared: Tensor, step: Step | None = None, cache: Tensor | None = None
    ) -> Tensor:
        q_BNSH = to_heads(q, self.nope_dim + self.rope_dim)
        seq, mask = q_BNSH.shape[2], None
        causal = True if seq > 1 else False  # noqa: SIM210 (see Attention)
        if cache is not None:
            assert step is not None, "a cache needs a step"
            write_rows(cache, torch.cat((latent, shared), -1).unsqueeze(1), step)
            if step.past > 0:
                total = step.past + seq
                rows = cache[:, 0, :total].to(q.dtype)
                latent, shared, causal = rows[..., : self.kv_lora_rank], rows[..., self.kv_lora_rank :], False
                if seq > 1 or not step.uniform:
                    mask = visible(step.positions, torch.arange(total, device=q.device).unsqueeze(0))
        if seq == 1 and cache is not None:
            return from_heads(self._absorbed(q_BNSH, latent, shared, mask))
        return from_heads(self._expanded(q_BNSH, latent, shared, mask, causal))

    def _expanded(
        self, q_BNSH: Tensor, latent_BTR: Tensor, shared_BTr: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        kv_BNTX = to_heads(self.kv_b_proj(latent_BTR), self.nope_dim + self.value_dim)
        shared = shared_BTr.unsqueeze(1).expand(-1, kv_BNTX.shape[1], -1, -1)
        k_BNTH = torch.cat((kv_BNTX[..., : self.nope_dim], shared), -1)
        v_BNTV = kv_BNTX[..., self.nope_dim :]
        return self.kernel(q_BNSH, k_BNTH, v_BNTV, scale=self.scale, mask=mask, causal=causal)

    def _absorbed(self, q_BNSH: Tensor, latent_BTR: Tensor, shared_BTr: Tensor, mask: Tensor | None) -> Tensor:
        """One token: the query moves into the latent space, so nothing is expanded."""
        w_NXR = self.kv_b_proj.weight.view(-1, self.nope_dim + self.value_dim, self.kv_lora_rank)
        q_nope, q_rope = q_BNSH.split((self.nope_dim, self.rope_dim), -1)
        q_BNR = torch.einsum("bnh,nhr->bnr", q_nope[:, :, 0], w_NXR[:, : self.nope_dim])
        scores_BNT = torch.matmul(q_BNR, latent_BTR.transpose(1, 2))
        scores_BNT = scores_BNT + torch.matmul(q_rope[:, :, 0], shared_BTr.transpose(1, 2))
        scores_BNT = scores_BNT.float() * self.scale
        if mask is not None:
            scores_BNT = scores_BNT.masked_fill(~mask[:, 0], float("-inf"))
        o_BNR = torch.matmul(scores_BNT.softmax(-1).to(latent_BTR.dtype), latent_BTR)
        return torch.einsum("bnr,nvr->bnv", o_BNR, w_NXR[:, self.nope_dim :]).unsqueeze(2)

    def extra_repr(self) -> str:
        return f"nope={self.nope_dim}, rope={self.rope_dim}, value={self.value_dim}, rank={self.kv_lora_rank}"


def attention(node: Node, context: Context) -> nn.Module:
    op = node.op
    assert isinstance(op, ops.Attention)
    kernel = attend if context.twin is None else twin_of(context.twin)
    module = Attention(op, kernel)
    if op.sinks:
        context.register(module, node.params["sinks"], "sinks")
    return module


def latent_attention(node: Node, context: Context) -> nn.Module:
    op = node.op
    assert isinstance(op, ops.LatentAttention)
    module = LatentAttention(op, attend if context.twin is None else twin_of(context.twin))
    module.kv_b_proj = context.linear(node.params["kv_b_proj"])
    return module
