"""Compressed attention: entries made of every few tokens, and attention to a window of keys and the entries before it."""

# Shape suffixes: B batch, S new tokens, T rows, W ring rows, R entries, n new windows, m tokens of a window, N query heads,
# H width, X a row and its gate side by side (2 H).

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import compressed as ops
from archc.ops.blocks import SLAB_ELEMENTS
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.attention import from_heads, to_heads
from archc.torch_backend.leaves.blocks import (
    ceil_div,
    in_slabs,
    new_block_rows,
    taken_rows,
    write_blocks,
)
from archc.torch_backend.leaves.caches import ring_positions, write_ring
from archc.torch_backend.leaves.norm import rms
from archc.torch_backend.leaves.numbers import numbers
from archc.torch_backend.leaves.rotary import rotate
from archc.torch_backend.leaves.softmax import attend_spelled, visible
from archc.torch_backend.leaves.sparse_latent import chosen, index_scores, places
from archc.torch_backend.step import Step
from archc.torch_backend.twins.attention import twin_of
from archc.torch_backend.twins.compressed import mixed_twin
from archc.torch_backend.twins.sparse_latent import scores_of


def mixed(rows_BnmH: Tensor, gates_BnmH: Tensor) -> Tensor:
    """Each channel's softmax-weighted mean of its window's tokens, (B, n, H) in float32."""
    return (rows_BnmH * gates_BnmH.softmax(2)).sum(2)


class CompressedEntries(nn.Module):
    """All entries so far, (B, R, H). The states are written in place.

    New tokens stand behind those that wait for their window: the last m - 1, and of series a, which belongs to the next
    window, the last 2 m - 1. So one row number finds a window's tokens in both.
    """

    position_bias: nn.Parameter
    norm_weight: nn.Parameter

    def __init__(self, op: ops.CompressedEntries, twin: str | None) -> None:
        super().__init__()
        self.dim, self.ratio, self.overlap, self.eps = op.dim, op.ratio, op.overlap, op.eps
        self.frequencies, self.factor, self.style = op.frequencies, op.factor, _style(op)
        self.mixed: Callable[[Tensor, Tensor], Tensor] = mixed if twin is None else mixed_twin

    def forward(self, rows: Tensor, gates: Tensor, step: Step | None = None, *states: Tensor | None) -> Tensor:
        seq, ratio = rows.shape[1], self.ratio
        series = [torch.cat(pair, -1) for pair in zip(rows.split(self.dim, -1), gates.split(self.dim, -1), strict=True)]
        cache = states[0] if states else None
        if cache is None:
            held = seq // ratio
            if self.overlap:
                series[0] = torch.cat((series[0].new_zeros(rows.shape[0], ratio, 2 * self.dim), series[0]), 1)
            return self._entries(series, torch.arange(held, device=rows.device).unsqueeze(0), 0, held, rows.dtype)
        assert step is not None, "a cache needs a step"
        # States come as pending, overlap; series as a, b.
        waiting = [state for state in reversed(states[1:]) if state is not None]
        series = [torch.cat((state[:, 0].to(new.dtype), new), 1) for state, new in zip(waiting, series, strict=True)]
        held = (step.past + seq) // ratio
        if step.start is None or step.new is None:
            first = step.past // ratio
            number = torch.arange(first, held, device=rows.device).unsqueeze(0)
            fresh = self._entries(series, number, first * ratio - step.past + ratio - 1, held - first, rows.dtype)
            cache[:, 0, first:held] = fresh.to(cache.dtype)
            for state, joined in zip(waiting, series, strict=True):
                state[:, 0].copy_(joined[:, seq:])
            return fresh if step.past == 0 else cache[:, 0, :held].to(rows.dtype)
        first_B, count = step.start // ratio, ceil_div(seq, ratio)
        number = first_B.unsqueeze(1) + torch.arange(count, device=rows.device)
        at = new_block_rows(first_B, step.start, count=count, stride=ratio, block=ratio, held=ratio - 1)
        fresh = self._mixed([_taken(each, at) for each in series], number, rows.dtype)
        write_blocks(cache, fresh.unsqueeze(1), first_B)
        for state, joined in zip(waiting, series, strict=True):
            kept = step.new.unsqueeze(1) + torch.arange(state.shape[2], device=rows.device)
            state.copy_(taken_rows(joined.unsqueeze(1), kept.unsqueeze(1)))
        return cache[:, 0, :held].to(rows.dtype)

    def _entries(self, series: list[Tensor], number: Tensor, start: int, count: int, dtype: torch.dtype) -> Tensor:
        """Entries of ``count`` windows that lie one behind the other, from row ``start`` on."""
        if count == 0:
            return series[0].new_zeros(series[0].shape[0], 0, self.dim)
        end = start + count * self.ratio
        return self._mixed([each[:, start:end].unflatten(1, (count, -1)) for each in series], number, dtype)

    def _mixed(self, windows: list[Tensor], number_Bn: Tensor, dtype: torch.dtype) -> Tensor:
        """Entries (B, n, H) of rows and gates (B, n, m, X) of each series, for the windows of these numbers."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        rows, gates = [], []
        for part_BnmX, bias_mH in zip(windows, self.position_bias.split(self.dim, -1), strict=True):
            row, gate = part_BnmX.to(wide).chunk(2, -1)
            rows.append(row)
            gates.append(gate + bias_mH.to(wide))
        if self.overlap:
            # Nothing is before the first window, whatever a used cache holds there.
            nothing = (number_Bn == 0)[:, :, None, None]
            rows[0], gates[0] = rows[0].masked_fill(nothing, 0.0), gates[0].masked_fill(nothing, float("-inf"))
        entries = self.mixed(torch.cat(rows, 2), torch.cat(gates, 2)).to(wide)
        entries = rms(entries, self.norm_weight.to(wide), self.eps)
        if self.frequencies:
            angles_BnR = (number_Bn * self.ratio).unsqueeze(-1).float() * numbers(self.frequencies, number_Bn)
            cos, sin = angles_BnR.cos() * self.factor, angles_BnR.sin() * self.factor
            turned = 2 * len(self.frequencies)
            offset = self.dim - turned
            entries = rotate(entries, cos, sin, head_dim=self.dim, dim=turned, offset=offset, style=self.style)
        return entries.to(dtype)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, ratio={self.ratio}{', overlap' if self.overlap else ''}"


def _style(op: ops.CompressedEntries) -> str:
    return "interleaved" if op.interleaved else "half"


def _taken(joined_BTX: Tensor, at_Bnm: Tensor) -> Tensor:
    """Rows of each sequence's windows, (B, n, m, X); a token that is not there is the last one."""
    row = at_Bnm.clamp(max=joined_BTX.shape[1] - 1).flatten(1).unsqueeze(-1)
    return joined_BTX.gather(1, row.expand(-1, -1, joined_BTX.shape[-1])).unflatten(1, at_Bnm.shape[1:])


class CompressedAttention(nn.Module):
    """A window of shared keys and values, and entries. ``key`` is a ring, written in place."""

    sinks: nn.Parameter | None

    def __init__(self, op: ops.CompressedAttention, twin: str | None) -> None:
        super().__init__()
        self.head_dim, self.scale, self.window, self.ratio = op.head_dim, op.scale, op.window, op.ratio
        self.index_heads, self.index_dim, self.topk = op.index_heads, op.index_dim, op.topk
        self.kernel: Callable[..., Tensor] = attend_spelled if twin is None else twin_of(twin)  # type: ignore[arg-type]
        self.scores = index_scores if twin is None else scores_of(twin)  # type: ignore[arg-type]
        # A twin scores what there is to score, however little there is to choose, and takes all tokens at once.
        self.is_twin = twin is not None
        self.register_parameter("sinks", None)

    def forward(self, q: Tensor, kv: Tensor, *rest: Tensor | Step | None) -> Tensor:
        """``rest`` are entries, and index queries, weights and entries, as many as the op has, the step, and the ring."""
        given = (self.ratio is not None) + 3 * (self.topk is not None)
        further, (step, key) = rest[:given], (*rest[given:], None, None)[:2]
        assert step is None or isinstance(step, Step)
        assert not isinstance(key, Step)
        q_BNSH, seq = to_heads(q, self.head_dim), q.shape[1]
        rows_BTH, row_BT, at_BS = self._window(kv, step, key)
        one = seq == 1 and key is not None
        before = rows_BTH.shape[1] - seq
        entries = further[0].shape[1] if further and isinstance(further[0], Tensor) else 0

        def slab(part: slice) -> tuple[Tensor, ...]:
            # Rows of the ring lie in any order; among new tokens those before the window are left out.
            start, stop = part.start or 0, seq if part.stop is None else min(part.stop, seq)
            near = slice(0 if start < self.window else before + start - self.window + 1, before + stop)
            seen = None
            if row_BT is not None:
                seen = visible(at_BS[:, part], row_BT[:, near], window=self.window)
            keys, seen = self._with_entries(rows_BTH[:, near], seen, further, at_BS[:, part], part, one=one)
            keys = keys.unsqueeze(1)
            return (self.kernel(q_BNSH[:, :, part], keys, keys, scale=self.scale, mask=seen, sinks_N=self.sinks),)

        if self.is_twin:
            return from_heads(slab(slice(None))[0])
        # Slices so short that most of what their tokens read together is what each of them reads.
        size = max(4 * self.window, 256)
        elements = q.shape[0] * (q_BNSH.shape[1] + self.index_heads) * (size + self.window + entries)
        return from_heads(in_slabs(seq, max(elements, ceil_div(SLAB_ELEMENTS, size)), slab)[0])

    def _window(self, kv: Tensor, step: Step | None, key: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """(rows that new tokens may read, in the ring's order and their own; their positions, None: all are seen; positions)."""
        seq = kv.shape[1]
        at = torch.arange(seq, device=kv.device).unsqueeze(0) if step is None else step.positions
        if key is None or step is None:
            return kv, at, at
        if step.past == 0:
            write_ring(key, kv.unsqueeze(1), step)
            return kv, at, at
        held = min(step.past, self.window)
        if step.uniform and seq == 1:
            # The new row takes the slot of the one that just left the window.
            write_ring(key, kv.unsqueeze(1), step)
            return key[:, 0, : min(step.past + 1, self.window)].to(kv.dtype), None, at
        rows = torch.cat((key[:, 0, :held].to(kv.dtype), kv), 1)
        write_ring(key, kv.unsqueeze(1), step)
        before = ring_positions(at[:, :1], self.window)[:, :held]
        return rows, torch.cat((before, at), 1), at

    def _with_entries(
        self,
        rows_BTH: Tensor,
        seen: Tensor | None,
        further: tuple[Tensor | Step | None, ...],
        at_BS: Tensor,
        part: slice,
        *,
        one: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """(rows and entries, one after the other, (B, T + R, H); which of them each token sees, None: all)."""
        if not further:
            return rows_BTH, seen
        entries_BRH = further[0]
        assert isinstance(entries_BRH, Tensor)
        count = entries_BRH.shape[1]
        if count == 0:
            return rows_BTH, seen
        assert self.ratio is not None
        last = torch.arange(count, device=at_BS.device) * self.ratio + self.ratio - 1
        complete = visible(at_BS, last.unsqueeze(0))
        if self.topk is not None and (count > self.topk or self.is_twin):
            index_q, weights, index_entries = further[1:]
            assert isinstance(index_q, Tensor)
            assert isinstance(weights, Tensor)
            assert isinstance(index_entries, Tensor)
            index_q_BSNH = index_q[:, part].unflatten(-1, (self.index_heads, self.index_dim))
            scores = self.scores(index_q_BSNH, index_entries, weights[:, part], complete)
            complete = chosen(scores, self.topk).unsqueeze(1)
            if one:
                index_BC = places(complete[:, 0, 0], self.topk)
                entries_BRH = entries_BRH.gather(1, index_BC.unsqueeze(-1).expand(-1, -1, self.head_dim))
                complete = complete.gather(3, index_BC[:, None, None])
        if seen is None:
            seen = complete.new_ones(1, 1, 1, rows_BTH.shape[1])
        parts = torch.broadcast_tensors(seen[..., :1], complete[..., :1])[0].shape[:-1]
        seen = torch.cat((seen.expand(*parts, -1), complete.expand(*parts, -1)), -1)
        return torch.cat((rows_BTH, entries_BRH), 1), seen

    def extra_repr(self) -> str:
        entries = "" if self.ratio is None else f", an entry every {self.ratio}"
        index = "" if self.topk is None else f", index={self.index_heads} x {self.index_dim}, topk={self.topk}"
        return f"head_dim={self.head_dim}, scale={self.scale:.6g}, window={self.window}{entries}{index}"


def compressed_entries(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.CompressedEntries)
    module = CompressedEntries(node.op, context.twin)
    for role, param in node.params.items():
        context.register(module, param, role)
    return module


def compressed_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.CompressedAttention)
    module = CompressedAttention(node.op, context.twin)
    if node.op.sinks:
        context.register(module, node.params["sinks"], "sinks")
    return module
