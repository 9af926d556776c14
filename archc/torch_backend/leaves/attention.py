"""Softmax attention over its own cache, and latent attention in its two forms."""

# Shape suffixes: B batch, S new tokens, T keys, N query heads, K key-value heads, H key width, V value width, R latent rank.

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import attention as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.caches import ring_positions, write_ring, write_rows
from archc.torch_backend.leaves.softmax import added, attend, falling, visible, while_alive
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
    """Causal attention with windows, chunks, sinks, soft caps and slopes. ``key`` and ``value`` are caches, written in place."""

    sinks: nn.Parameter | None
    adds_masks: ClassVar[bool] = True
    """Whether the kernel takes masks of numbers."""

    def __init__(self, op: ops.Attention, kernel: Attend) -> None:
        super().__init__()
        self.key_dim, self.value_dim, self.scale = op.key_dim, op.value_dim, op.scale
        self.window, self.sink_tokens, self.chunk, self.soft_cap = op.window, op.sink_tokens, op.chunk, op.soft_cap
        self.ring_rows, self.slopes = op.ring_rows(), op.slopes
        self.has_prefix, self.has_bias, self.shares = op.has_prefix, op.has_bias, op.shares
        self.kernel = kernel
        self.register_parameter("sinks", None)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor | Step | None
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """``rest`` are the length of the prefix or the bias, where the op has one, the step, and the caches of key and value."""
        further, step, key, value = self._told(rest)
        q, k, v = to_heads(q, self.key_dim), to_heads(k, self.key_dim), to_heads(v, self.value_dim)
        if key is None or value is None:
            keys, values, step = k, v, None
        else:
            assert step is not None, "a cache needs a step"
            keys, values = self._cached(k, key, step), self._cached(v, value, step)
        o = from_heads(self.attend(q, keys, values, step, further))
        return (o, keys, values) if self.shares else o

    def _told(
        self, rest: tuple[Tensor | Step | None, ...]
    ) -> tuple[Tensor | None, Step | None, Tensor | None, Tensor | None]:
        rest = (*rest, None, None, None, None)
        further, step, key, value = rest[:4] if self.has_prefix or self.has_bias else (None, *rest[:3])
        assert not isinstance(further, Step)
        assert not isinstance(key, Step)
        assert not isinstance(value, Step)
        assert not isinstance(step, Tensor)
        return further, step, key, value

    def _cached(self, new: Tensor, cache: Tensor, step: Step) -> Tensor:
        """Write new rows (B, K, S, width), and give those that their tokens attend to."""
        seq = new.shape[2]
        if self.ring_rows is None:
            write_rows(cache, new, step)
            return new if step.past == 0 else cache[:, :, : step.past + seq].to(new.dtype)
        if step.past > 0 and not (step.uniform and seq == 1):
            rows = torch.cat((cache[:, :, : min(step.past, cache.shape[2])].to(new.dtype), new), 2)
            write_ring(cache, new, step, self.sink_tokens)
            return rows
        write_ring(cache, new, step, self.sink_tokens)
        if step.past == 0:
            return new
        # The new row took the slot of the one that just left the window.
        held = min(step.past + 1, self.ring_rows) if self.chunk is None else step.past % self.ring_rows + 1
        return cache[:, :, :held].to(new.dtype)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, step: Step | None, further: Tensor | None) -> Tensor:
        """Queries (B, N, S, H) over the rows that ``forward`` gave for them: (B, N, S, V)."""
        if step is None or step.past == 0:
            return self._attend_new(q, keys, values, further)
        if self.ring_rows is not None:
            return self._attend_ring(q, keys, values, step)
        if self.has_bias:
            return self._call(q, keys, values, further)
        mask, positions = None, torch.arange(step.past + q.shape[2], device=q.device).unsqueeze(0)
        if q.shape[2] > 1 or not step.uniform:
            mask = self._with_prefix(visible(step.positions, positions), further)
        return self._call(q, keys, values, self._sloped(mask, step.positions, positions, q.dtype))

    def _with_prefix(self, seen: Tensor, length_B: Tensor | None) -> Tensor:
        """What is seen of keys 0, 1, 2, …, and the first ``length`` of them, (B or 1, 1, S, T)."""
        if length_B is None:
            return seen
        return seen | (torch.arange(seen.shape[-1], device=seen.device) < length_B.unsqueeze(-1))[:, None, None]

    def _attend_new(self, q: Tensor, k: Tensor, v: Tensor, further: Tensor | None = None) -> Tensor:
        """New tokens among themselves, from an empty cache; padding on the right is seen by padding only."""
        seq = q.shape[2]
        if self.has_bias:
            return self._call(q, k, v, further)
        if self.slopes is None and further is None and (self.ring_rows is None or seq <= self.ring_rows):
            # `True if … else False`: a symbolic bool would break a compiled graph.
            return self._call(q, k, v, None, causal=True if seq > 1 else False)  # noqa: SIM210
        dtype = q.dtype if self.adds_masks else torch.bool
        key = (self.slopes, self.window, self.chunk, self.sink_tokens, seq, q.device, dtype)
        return self._call(q, k, v, while_alive(key, lambda: self._mask_of_new(q, further), of=further))

    def _mask_of_new(self, q: Tensor, length_B: Tensor | None) -> Tensor:
        positions = torch.arange(q.shape[2], device=q.device).unsqueeze(0)
        return self._mask_between(positions, positions, q.dtype, length_B)

    def _mask_between(
        self, query_BS: Tensor, key_BT: Tensor, dtype: torch.dtype, length_B: Tensor | None = None
    ) -> Tensor:
        """The mask of queries and keys at these positions, as the kernel takes it."""
        seen = self._with_prefix(self._visible(query_BS, key_BT), length_B)
        mask = self._sloped(seen, query_BS, key_BT, dtype)
        assert mask is not None
        return added(mask, dtype) if self.adds_masks and mask.dtype == torch.bool else mask

    def _attend_ring(self, q: Tensor, keys: Tensor, values: Tensor, step: Step) -> Tensor:
        rows = self.ring_rows
        assert rows is not None
        if step.uniform and q.shape[2] == 1:
            # All rows are seen; which slot holds which token matters to slopes only.
            mask = None
            if self.slopes is not None:
                slots = ring_positions(step.positions + 1, rows, self.sink_tokens)[:, : keys.shape[2]]
                mask = self._sloped(None, step.positions, slots, q.dtype)
            return self._call(q, keys, values, mask)
        before = ring_positions(step.positions[:, :1], rows, self.sink_tokens)[:, : min(step.past, rows)]
        positions = torch.cat((before, step.positions), 1)
        mask = self._visible(step.positions, positions)
        return self._call(q, keys, values, self._sloped(mask, step.positions, positions, q.dtype))

    def _sloped(self, mask: Tensor | None, query_BS: Tensor, key_BT: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The mask, with slopes where there are any: numbers instead of bools."""
        return mask if self.slopes is None else falling(self.slopes, query_BS, key_BT, mask, dtype)

    def _visible(self, query_BS: Tensor, key_BT: Tensor) -> Tensor:
        return visible(query_BS, key_BT, window=self.window, chunk=self.chunk, sink_tokens=self.sink_tokens)

    def _call(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
        return self.kernel(
            q, k, v, scale=self.scale, mask=mask, causal=causal, sinks_N=self.sinks, soft_cap=self.soft_cap
        )

    def extra_repr(self) -> str:
        reach = f", window={self.window}" if self.window else f", chunk={self.chunk}" if self.chunk else ""
        reach += f", sink_tokens={self.sink_tokens}" if self.sink_tokens else ""
        reach += "" if self.slopes is None else ", slopes"
        return f"key_dim={self.key_dim}, value_dim={self.value_dim}, scale={self.scale:.6g}{reach}"


class SharedAttention(Attention):
    """The same over the rows of an earlier layer's, (B, K, T, H) and (B, K, T, V), which that one has written."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor | Step | None) -> Tensor:
        """``rest`` are the length of the prefix or the bias, where the op has one, and the step."""
        further, step, _, _ = self._told(rest)
        return from_heads(self.attend(to_heads(q, self.key_dim), k, v, step, further))


class LatentAttention(nn.Module):
    """MLA. Adapters put on ``kv_b_proj`` act in the expanded form only, until they are merged into its weight."""

    kv_b_proj: nn.Linear

    def __init__(self, op: ops.LatentAttention, kernel: Attend) -> None:
        super().__init__()
        self.nope_dim, self.rope_dim, self.value_dim = op.nope_dim, op.rope_dim, op.value_dim
        self.kv_lora_rank, self.scale = op.kv_lora_rank, op.scale
        self.window, self.sink_tokens, self.ring_rows = op.window, op.sink_tokens, op.ring_rows()
        self.kernel = kernel

    def forward(
        self, q: Tensor, latent: Tensor, shared: Tensor, step: Step | None = None, cache: Tensor | None = None
    ) -> Tensor:
        q_BNSH = to_heads(q, self.nope_dim + self.rope_dim)
        seq, mask = q_BNSH.shape[2], None
        causal = True if seq > 1 else False  # noqa: SIM210 (see Attention)
        if cache is not None and step is not None and step.past > 0:
            rows, mask = self._rows(torch.cat((latent, shared), -1), step, cache)
            latent, shared, causal = rows[..., : self.kv_lora_rank], rows[..., self.kv_lora_rank :], False
        else:
            if cache is not None:
                assert step is not None, "a cache needs a step"
                self._write(cache, torch.cat((latent, shared), -1), step)
            if self.ring_rows is not None and seq > self.ring_rows:
                key = ("latent", self.window, self.sink_tokens, seq, q.device, q.dtype)
                mask, causal = while_alive(key, lambda: self._mask_of_new(q)), False
        if seq == 1 and cache is not None:
            return from_heads(self._absorbed(q_BNSH, latent, shared, mask))
        return from_heads(self._expanded(q_BNSH, latent, shared, mask, causal))

    def _mask_of_new(self, q: Tensor) -> Tensor:
        positions = torch.arange(q.shape[1], device=q.device).unsqueeze(0)
        return added(self._visible(positions, positions), q.dtype)

    def _rows(self, new_BSX: Tensor, step: Step, cache: Tensor) -> tuple[Tensor, Tensor | None]:
        """The rows of a filled cache that a call reads, with the new ones, and the mask over them; None sees all."""
        seq = new_BSX.shape[1]
        one = seq == 1 and step.uniform
        if self.ring_rows is None:
            self._write(cache, new_BSX, step)
            total = step.past + seq
            held = cache[:, 0, :total].to(new_BSX.dtype)
            return held, None if one else visible(step.positions, torch.arange(total, device=cache.device).unsqueeze(0))
        if one:
            self._write(cache, new_BSX, step)
            return cache[:, 0, : min(step.past + 1, self.ring_rows)].to(new_BSX.dtype), None
        held = min(step.past, self.ring_rows)
        before = ring_positions(step.positions[:, :1], self.ring_rows, self.sink_tokens)[:, :held]
        rows = torch.cat((cache[:, 0, :held].to(new_BSX.dtype), new_BSX), 1)
        self._write(cache, new_BSX, step)
        return rows, self._visible(step.positions, torch.cat((before, step.positions), 1))

    def _write(self, cache: Tensor, new_BSX: Tensor, step: Step) -> None:
        if self.ring_rows is None:
            write_rows(cache, new_BSX.unsqueeze(1), step)
        else:
            write_ring(cache, new_BSX.unsqueeze(1), step, self.sink_tokens)

    def _visible(self, query_BS: Tensor, key_BT: Tensor) -> Tensor:
        return visible(query_BS, key_BT, window=self.window, sink_tokens=self.sink_tokens)

    def _expanded(
        self, q_BNSH: Tensor, latent_BTR: Tensor, shared_BTr: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        k_BNTH, v_BNTV = self._keys_and_values(latent_BTR, shared_BTr)
        return self.kernel(q_BNSH, k_BNTH, v_BNTV, scale=self.scale, mask=mask, causal=causal)

    def _keys_and_values(self, latent_BTR: Tensor, shared_BTr: Tensor) -> tuple[Tensor, Tensor]:
        kv_BNTX = to_heads(self.kv_b_proj(latent_BTR), self.nope_dim + self.value_dim)
        shared = shared_BTr.unsqueeze(1).expand(-1, kv_BNTX.shape[1], -1, -1)
        return torch.cat((kv_BNTX[..., : self.nope_dim], shared), -1), kv_BNTX[..., self.nope_dim :]

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
    return _attention(Attention, node, context)


def shared_attention(node: Node, context: Context) -> nn.Module:
    return _attention(SharedAttention, node, context)


def _attention(cls: type[Attention], node: Node, context: Context) -> nn.Module:
    op = node.op
    assert isinstance(op, ops.Attention)
    module = cls(op, attend if context.twin is None else twin_of(context.twin))
    if op.sinks:
        context.register(module, node.params["sinks"], "sinks")
    return module


def latent_attention(node: Node, context: Context) -> nn.Module:
    op = node.op
    assert isinstance(op, ops.LatentAttention)
    module = LatentAttention(op, attend if context.twin is None else twin_of(context.twin))
    module.kv_b_proj = context.linear(node.params["kv_b_proj"])
    return module
