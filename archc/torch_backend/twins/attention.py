"""Readable softmax attention, the judge of values, gradients and FLOPs."""

# Shape suffixes: B batch, S new tokens, T keys, N query heads, K key-value heads, H key width, V value width.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from archc.ir.op import Pairs


def twin_of(pairs: Pairs) -> Callable[..., Tensor]:
    """The twin that computes ``needed`` pairs one query at a time, or the ``dense`` rectangle behind a mask."""
    return one_query_at_a_time if pairs == "needed" else dense


def dense(
    q_BNSH: Tensor,
    k_BKTH: Tensor,
    v_BKTV: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    sinks_N: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """All scores, then a mask, in float64: (B, N, S, V)."""
    group = q_BNSH.shape[1] // k_BKTH.shape[1]
    q, k, v = q_BNSH.double(), k_BKTH.double().repeat_interleave(group, 1), v_BKTV.double().repeat_interleave(group, 1)
    scores = _scores(q, k, scale, soft_cap)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return (_softmax(scores, sinks_N) @ v).to(v_BKTV.dtype)


def one_query_at_a_time(
    q_BNSH: Tensor,
    k_BKTH: Tensor,
    v_BKTV: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    sinks_N: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Each query against only the keys it sees, so that a counter sees the needed pairs and no others."""
    batch, heads, seq, _ = q_BNSH.shape
    group, keys = heads // k_BKTH.shape[1], k_BKTH.shape[2]
    k, v = k_BKTH.double().repeat_interleave(group, 1), v_BKTV.double().repeat_interleave(group, 1)
    if mask is None:
        seen = torch.ones(seq, keys, dtype=torch.bool)
        mask = (seen.tril() if causal else seen).expand(1, 1, seq, keys)
    rows: list[Tensor] = []
    for b in range(batch):
        columns: list[Tensor] = []
        for s in range(seq):
            # One mask may be that of all rows, or of all queries.
            row = mask[min(b, mask.shape[0] - 1), :, min(s, mask.shape[2] - 1)]
            index = (row[0] if row.dtype == torch.bool else row[0].isfinite()).nonzero().flatten()
            scores = _scores(q_BNSH[b : b + 1, :, s : s + 1].double(), k[b : b + 1, :, index], scale, soft_cap)
            if row.dtype != torch.bool:
                scores = scores + row[:, index].unsqueeze(1)
            columns.append(_softmax(scores, sinks_N) @ v[b : b + 1, :, index])
        rows.append(torch.cat(columns, 2))
    return torch.cat(rows, 0).to(v_BKTV.dtype)


def _scores(q: Tensor, k: Tensor, scale: float, soft_cap: float | None) -> Tensor:
    scores = q @ k.transpose(-1, -2) * scale
    return scores if soft_cap is None else torch.tanh(scores / soft_cap) * soft_cap


def _softmax(scores: Tensor, sinks_N: Tensor | None) -> Tensor:
    if sinks_N is None:
        return scores.softmax(-1)
    sink = sinks_N.double().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
