# B batch, H heads, K key channels, V value channels, C rows of a chunk
"""One chunk of linear attention with a decay a key channel, (B, H, C, ...) in float64: the judge's forms of `gated_attention`.

A row's scores are one product of its query with the keys as far as they are decayed at that row, so no exponent is above 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 64


def step(q: Tensor, k: Tensor, v: Tensor, g_BHCK: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """What is written and what is read, each a product with the state."""
    S = g_BHCK.exp().transpose(-1, -2) * S + k.transpose(-1, -2) @ v
    return q @ S, S


def dense_chunk(q: Tensor, k: Tensor, v: Tensor, g_BHCK: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """All rows of a whole chunk, with every column."""
    rows = q.shape[2]
    q, k, v, g = (functional.pad(x, (0, 0, 0, CHUNK - rows)) for x in (q, k, v, g_BHCK))
    G = g.cumsum(2)
    scores = torch.cat([_row(q, k, G, i, CHUNK) for i in range(CHUNK)], 2)
    out = (q * G.exp()) @ S + scores @ v
    return out[:, :, :rows], _next_state(k, v, G, S)


def needed_chunk(q: Tensor, k: Tensor, v: Tensor, g_BHCK: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """The rows there are, each with the columns up to itself."""
    G = g_BHCK.cumsum(2)
    inside = [_row(q, k, G, i, i + 1) @ v[:, :, : i + 1] for i in range(q.shape[2])]
    return (q * G.exp()) @ S + torch.cat(inside, 2), _next_state(k, v, G, S)


FORMS = (step, needed_chunk, dense_chunk)
"""Of one token, of needed pairs, of dense ones."""


def _row(q: Tensor, k: Tensor, G: Tensor, i: int, columns: int) -> Tensor:
    """Scores of row i with the first columns, 0 behind i, (B, H, 1, columns)."""
    later = torch.arange(columns, device=G.device).unsqueeze(-1) > i
    between = (G[:, :, i : i + 1] - G[:, :, :columns]).masked_fill(later, -torch.inf).exp()
    return q[:, :, i : i + 1] @ (k[:, :, :columns] * between).transpose(-1, -2)


def _next_state(k: Tensor, v: Tensor, G: Tensor, S: Tensor) -> Tensor:
    last = G[:, :, -1:]
    return last.exp().transpose(-1, -2) * S + (k * (last - G).exp()).transpose(-1, -2) @ v
