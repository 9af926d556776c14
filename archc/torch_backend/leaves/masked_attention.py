"""Attention that sees everything, attention to an encoder, and biases by distance that know the mask."""

# Shape suffixes: B batch, S tokens, T keys, N query heads, K key-value heads, H key width, V value width.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import masked_attention as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.attention import from_heads, to_heads
from archc.torch_backend.leaves.numbers import numbers
from archc.torch_backend.leaves.softmax import added, attend, while_alive
from archc.torch_backend.step import Step
from archc.torch_backend.twins.attention import twin_of

Attend = Callable[..., Tensor]


def seen_of(padding_BT: Tensor | None) -> Tensor | None:
    """(batch, keys) of ones and zeros -> which keys any query sees, (B, 1, 1, T) bool."""
    return None if padding_BT is None else padding_BT.bool()[:, None, None]


class BidirectionalAttention(nn.Module):
    """Attention among all tokens of a call, with padding on either side, windows and slopes; it keeps nothing."""

    adds_masks: ClassVar[bool] = True
    """Whether the kernel takes masks of numbers."""

    def __init__(self, op: ops.BidirectionalAttention, kernel: Attend) -> None:
        super().__init__()
        self.key_dim, self.value_dim, self.scale, self.soft_cap = op.key_dim, op.value_dim, op.scale, op.soft_cap
        self.window, self.slopes, self.has_bias = op.window, op.slopes, op.has_bias
        self.kernel = kernel

    def forward(self, q: Tensor, k: Tensor, v: Tensor, further: Tensor | None = None) -> Tensor:
        """``further`` is the padding (batch, seq), or a bias (batch or 1, heads, seq, seq) that knows it."""
        q, k, v = to_heads(q, self.key_dim), to_heads(k, self.key_dim), to_heads(v, self.value_dim)
        mask = further if self.has_bias else self._mask(q, seen_of(further))
        return from_heads(self._call(q, k, v, mask))

    def _call(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return self.kernel(q, k, v, scale=self.scale, mask=mask, soft_cap=self.soft_cap)

    def _mask(self, q_BNSH: Tensor, seen: Tensor | None) -> Tensor | None:
        seq, device = q_BNSH.shape[2], q_BNSH.device
        if self.slopes is None and (self.window is None or seq <= self.window // 2 + 1):
            return seen
        key = (self.window, self.slopes, seq, device, q_BNSH.dtype)
        reach = while_alive(key, lambda: self._reach(seq, q_BNSH))
        if seen is None:
            return reach
        if self.window is not None:
            # A padded query may have nothing but padding in its window; it sees itself, so that no row is empty.
            seen = seen | torch.eye(seq, dtype=torch.bool, device=device)
        return reach & seen if reach.dtype == torch.bool else reach.masked_fill(~seen, float("-inf"))

    def _reach(self, seq: int, q: Tensor) -> Tensor:
        """Which tokens see each other, (1, 1 or with slopes N, S, S): numbers where the kernel adds masks, else bools."""
        index = torch.arange(seq, device=q.device)
        distance = (index - index.unsqueeze(-1)).abs()
        near = None if self.window is None else distance <= self.window // 2
        if self.slopes is None:
            assert near is not None
            return added(near[None, None], q.dtype) if self.adds_masks else near[None, None]
        fall = -distance.float() * numbers(self.slopes, q).view(-1, 1, 1)
        return (fall if near is None else fall.masked_fill(~near, float("-inf"))).to(q.dtype).unsqueeze(0)

    def extra_repr(self) -> str:
        reach = f", window={self.window}" if self.window else ""
        return f"key_dim={self.key_dim}, value_dim={self.value_dim}, scale={self.scale:.6g}{reach}"


class CrossAttention(nn.Module):
    """Attention to an encoder. ``key`` and ``value`` are kept when the encoder's are given, and read when they are not."""

    def __init__(self, op: ops.CrossAttention, kernel: Attend) -> None:
        super().__init__()
        self.key_dim, self.value_dim, self.scale, self.soft_cap = op.key_dim, op.value_dim, op.scale, op.soft_cap
        self.has_padding, self.kernel = op.has_padding, kernel

    def forward(self, q: Tensor, k: Tensor | None, v: Tensor | None, *rest: Tensor | Step | None) -> Tensor:
        """``rest`` are the padding, where the op has it, the step, and the tensors that keep keys and values."""
        padding, _, key, value = rest if self.has_padding else (None, *rest)
        assert not isinstance(padding, Step)
        assert not isinstance(key, Step)
        assert not isinstance(value, Step)
        q = to_heads(q, self.key_dim)
        if k is None or v is None:
            if key is None or value is None:
                raise ValueError("a decoder without a cache needs encoder_input_ids in every call")
            keys, values = key.to(q.dtype), value.to(q.dtype)
        else:
            keys, values = to_heads(k, self.key_dim), to_heads(v, self.value_dim)
            keep_source(key, keys)
            keep_source(value, values)
        mask = seen_of(padding)
        return from_heads(self._call(q, keys, values, mask))

    def _call(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return self.kernel(q, k, v, scale=self.scale, mask=mask, soft_cap=self.soft_cap)

    def extra_repr(self) -> str:
        return f"key_dim={self.key_dim}, value_dim={self.value_dim}, scale={self.scale:.6g}"


def keep_source(kept: Tensor | None, rows: Tensor) -> None:
    """Write an encoder's rows (batch, heads, source, width) to what keeps them.

    Raises:
        ValueError: it was made for another number of tokens.
    """
    if kept is None:
        return
    if kept.shape != rows.shape:
        raise ValueError(
            f"the cache keeps {kept.shape[2]} tokens of the encoder for {kept.shape[0]} rows, and {rows.shape[2]} for "
            f"{rows.shape[0]} are given; make it with that source_len"
        )
    kept.copy_(rows)


class RelativeBias(nn.Module):
    """positions -> what scores are added, (B or 1, N, S, T) in the dtype of the table, minus infinity where nothing is seen."""

    weight: nn.Parameter

    def __init__(self, op: ops.RelativeBias) -> None:
        super().__init__()
        self.num_buckets, self.max_distance, self.mask = op.num_buckets, op.max_distance, op.mask
        self.inputs = 1 if op.mask == "causal" else 2

    def forward(self, positions: Tensor, *rest: Tensor | Step | None) -> Tensor:
        """``rest`` are the padding or the length of the prefix, where the mask has it, and the step."""
        further, step = rest if len(rest) > 1 else (None, rest[0] if rest else None)
        assert not isinstance(further, Step)
        if self.mask == "bidirectional":
            bias, seen = self._numbers(positions, positions), seen_of(further)
        else:
            total = positions.shape[1] if not isinstance(step, Step) else step.past + positions.shape[1]
            keys = torch.arange(total, device=positions.device).unsqueeze(0)
            bias = self._numbers(positions, keys)
            seen = (keys.unsqueeze(1) <= positions.unsqueeze(-1)).unsqueeze(1)
            if further is not None:
                seen = seen | (keys < further.unsqueeze(-1))[:, None, None]
        return bias if seen is None else bias.masked_fill(~seen, float("-inf"))

    def _numbers(self, query_BS: Tensor, key_BT: Tensor) -> Tensor:
        distance = key_BT.unsqueeze(1) - query_BS.unsqueeze(-1)
        return self.weight[self._buckets(distance)].permute(0, 3, 1, 2)

    def _buckets(self, distance: Tensor) -> Tensor:
        """``ops.bucket_of`` of a whole matrix."""
        count, first = self.num_buckets, torch.zeros_like(distance)
        if self.mask == "bidirectional":
            count //= 2
            first = (distance > 0).long() * count
            steps = distance.abs()
        else:
            steps = (-distance).clamp(min=0)
        exact = count // 2
        # In float32, as the models were trained: a distance on a boundary falls where theirs does.
        grown = torch.log(steps.clamp(min=1).float() / exact) / math.log(self.max_distance / exact) * (count - exact)
        far = (exact + grown.long()).clamp(max=count - 1)
        return first + torch.where(steps < exact, steps, far)

    def extra_repr(self) -> str:
        return f"num_buckets={self.num_buckets}, max_distance={self.max_distance}, mask={self.mask}"


def bidirectional_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.BidirectionalAttention)
    return BidirectionalAttention(node.op, attend if context.twin is None else twin_of(context.twin))


def cross_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.CrossAttention)
    return CrossAttention(node.op, attend if context.twin is None else twin_of(context.twin))


def relative_bias(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.RelativeBias)
    module = RelativeBias(node.op)
    context.register(module, node.params["weight"], "weight")
    return module
