"""Readable compression of tokens to entries, the judge of values and gradients; it has no matrix-like work to count."""

# Shape suffixes: B batch, n windows, m tokens of a window, H width.

from __future__ import annotations

import torch
from torch import Tensor


def mixed_twin(rows_BnmH: Tensor, gates_BnmH: Tensor) -> Tensor:
    """Each channel's softmax-weighted mean of its window's tokens, one window at a time, in float64: (B, n, H)."""
    means = [
        sum_of(rows_BmH.double(), gates_BmH.double().exp())
        for rows_BmH, gates_BmH in zip(rows_BnmH.unbind(1), gates_BnmH.unbind(1), strict=True)
    ]
    return torch.stack(means, 1) if means else rows_BnmH[:, :, 0].double()


def sum_of(rows_BmH: Tensor, weights_BmH: Tensor) -> Tensor:
    """The weighted sum of tokens over the sum of their weights, (B, H)."""
    return (rows_BmH * weights_BmH).sum(1) / weights_BmH.sum(1)
