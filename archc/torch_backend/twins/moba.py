"""Readable mixture of block attention: query heads one by one, and gates of the blocks that lie before a token."""

# Shape suffixes: B batch, S new tokens, T rows, J blocks, N query heads, K key-value heads, H width.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from archc.torch_backend.twins.attention import dense, one_query_at_a_time


def by_query_head(pairs: str) -> Callable[..., Tensor]:
    """The twin of attention that computes ``needed`` pairs or the ``dense`` rectangle, under a mask of each query head."""
    twin = one_query_at_a_time if pairs == "needed" else dense

    def attend(q_BNSH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, *, scale: float, mask: Tensor) -> Tensor:
        batch, heads = q_BNSH.shape[:2]
        group = heads // k_BKTH.shape[1]
        q, k, v = (
            x.flatten(0, 1).unsqueeze(1) for x in (q_BNSH, *(y.repeat_interleave(group, 1) for y in (k_BKTH, v_BKTH)))
        )
        seen = mask.expand(batch, heads, -1, -1).flatten(0, 1).unsqueeze(1)
        return twin(q, k, v, scale=scale, mask=seen).unflatten(0, (batch, heads)).squeeze(2)

    return attend


def gates_twin(pairs: str) -> Callable[..., Tensor]:
    """Products of queries and mean keys, (B, N, S, J): ``needed`` ones only, or all of them."""
    return needed_gates if pairs == "needed" else dense_gates


def dense_gates(q_BNSH: Tensor, mean_BKJH: Tensor, at_BS: Tensor, block: int) -> Tensor:
    """All products, in float64."""
    group = q_BNSH.shape[1] // mean_BKJH.shape[1]
    return (q_BNSH.double() @ mean_BKJH.double().repeat_interleave(group, 1).transpose(-1, -2)).float()


def needed_gates(q_BNSH: Tensor, mean_BKJH: Tensor, at_BS: Tensor, block: int) -> Tensor:
    """Those with blocks that lie wholly before a token's own, one token at a time."""
    batch, heads, seq, _ = q_BNSH.shape
    mean = mean_BKJH.double().repeat_interleave(heads // mean_BKJH.shape[1], 1)
    found = torch.zeros(batch, heads, seq, mean.shape[2])
    for b in range(batch):
        for s in range(seq):
            before = int(at_BS[min(b, at_BS.shape[0] - 1), s]) // block
            product = q_BNSH[b, :, s].double().unsqueeze(1) @ mean[b, :, :before].transpose(-1, -2)
            found[b, :, s, :before] = product.squeeze(1).float()
    return found
