"""Readable disentangled attention in float64: one query at a time, or all positions within reach behind a gather."""

# Shape suffixes: B batch, S queries, T keys, N heads, H key width, V value width, P relative positions within reach.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from archc.ir.op import Pairs


def twin_of(pairs: Pairs) -> Callable[..., Tensor]:
    """The twin that meets only each pair's own position (``needed``), or every position within reach (``dense``)."""
    return one_query_at_a_time if pairs == "needed" else dense


def dense(
    q_BNSH: Tensor,
    k_BNTH: Tensor,
    v_BNTV: Tensor,
    keys_1NPH: Tensor | None,
    queries_1NPH: Tensor | None,
    index_ST: Tensor,
    *,
    scale: float,
    seen: Tensor | None,
) -> Tensor:
    """(B, N, S, V)."""
    q, k, v = q_BNSH.double(), k_BNTH.double(), v_BNTV.double()
    scores = q @ k.transpose(-1, -2)
    rows, columns = torch.arange(q.shape[2]).unsqueeze(1), torch.arange(k.shape[2])
    if keys_1NPH is not None:
        scores = scores + (q @ keys_1NPH.double().transpose(-1, -2))[:, :, rows, index_ST]
    if queries_1NPH is not None:
        scores = scores + (k @ queries_1NPH.double().transpose(-1, -2))[:, :, columns, index_ST]
    scores = scores * scale
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) @ v).to(v_BNTV.dtype)


def one_query_at_a_time(
    q_BNSH: Tensor,
    k_BNTH: Tensor,
    v_BNTV: Tensor,
    keys_1NPH: Tensor | None,
    queries_1NPH: Tensor | None,
    index_ST: Tensor,
    *,
    scale: float,
    seen: Tensor | None,
) -> Tensor:
    """Each query with each key and with the two vectors of their relative position, and nothing else."""
    q, k, v = q_BNSH.double(), k_BNTH.double(), v_BNTV.double()
    rows: list[Tensor] = []
    for i in range(q.shape[2]):
        one = q[:, :, i : i + 1]
        scores = one @ k.transpose(-1, -2)
        if keys_1NPH is not None:
            scores = scores + one @ keys_1NPH.double()[:, :, index_ST[i]].transpose(-1, -2)
        if queries_1NPH is not None:
            each = queries_1NPH.double()[:, :, index_ST[i]].expand_as(k)
            scores = scores + (k.unsqueeze(-2) @ each.unsqueeze(-1)).flatten(-3).unsqueeze(-2)
        scores = scores * scale
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        rows.append(scores.softmax(-1) @ v)
    return torch.cat(rows, 2).to(v_BNTV.dtype)
