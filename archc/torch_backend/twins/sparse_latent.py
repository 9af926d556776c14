"""Readable index scores, the judge of an indexer's choice and of its FLOPs."""

# Shape suffixes: B batch, S new tokens, T keys, N index heads, H index width.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from archc.ir.op import Pairs


def scores_of(pairs: Pairs) -> Callable[..., Tensor]:
    """The twin that scores only the keys a query sees, one query at a time, or the ``dense`` rectangle."""
    return one_query_at_a_time if pairs == "needed" else dense


@torch.no_grad()
def dense(q_BSNH: Tensor, k_BTH: Tensor, weights_BSN: Tensor, seen: Tensor) -> Tensor:
    """``sum_n w_n relu(q_n k)`` of every query and key in float64: (B, S, T), minus infinity where a key is not seen."""
    products_BSNT = q_BSNH.double() @ k_BTH.double().transpose(1, 2).unsqueeze(1)
    scores_BST = (weights_BSN.double().unsqueeze(2) @ products_BSNT.relu()).squeeze(2)
    return scores_BST.masked_fill(~seen[:, 0], float("-inf"))


@torch.no_grad()
def one_query_at_a_time(q_BSNH: Tensor, k_BTH: Tensor, weights_BSN: Tensor, seen: Tensor) -> Tensor:
    """The same, each query against only the keys it sees."""
    batch, seq = q_BSNH.shape[:2]
    scores = torch.full((batch, seq, k_BTH.shape[1]), float("-inf"), dtype=torch.float64)
    for b in range(batch):
        for s in range(seq):
            index = seen[min(b, seen.shape[0] - 1), 0, s].nonzero().flatten()
            products_NT = q_BSNH[b, s].double() @ k_BTH[b, index].double().T
            scores[b, s, index] = (weights_BSN[b, s : s + 1].double() @ products_NT.relu())[0]
    return scores
