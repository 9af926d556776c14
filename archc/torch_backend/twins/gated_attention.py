# B batch, S tokens, H heads of values, I heads of keys, K key channels, V value channels, C rows of a chunk
"""Linear attention with a decay a head or a key channel, spelled out in float64: the judge of the fast operator and its count.

Layouts as `archc.torch_backend.operators.gated_attention.gated_attention_rule`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from archc.torch_backend.twins import channel_decay

CHUNK = 64


def gated_attention_twin(pairs: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rule in matmuls: chunks that count ``pairs`` for many tokens, the recurrence for one."""

    def rule(
        q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        q_BSIK, k_BSIK, v_BSHV, g_BSH = (x.double() for x in (q * scale, k, v, log_decay))
        # The first chunk's products with an empty state are part of the form, so they are computed and counted.
        S = v_BSHV.new_zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3]) if state is None else state.double()
        forms = (_step, _needed_chunk, _dense_chunk) if g_BSH.dim() == 3 else channel_decay.FORMS
        form = forms[0] if q.shape[1] == 1 else forms[1] if pairs == "needed" else forms[2]
        outs = []
        for start in range(0, q.shape[1], CHUNK):
            rows = slice(start, start + CHUNK)
            q_now, k_now, v_now, g_now = (x[:, rows].transpose(1, 2) for x in (q_BSIK, k_BSIK, v_BSHV, g_BSH))
            out, S = form(q_now, k_now, v_now, g_now, S)
            outs.append(out.transpose(1, 2))
        final = S.to(torch.float64 if v.dtype == torch.float64 else torch.float32)
        return torch.cat(outs, 1).to(v.dtype), final

    return rule


def recurrent_float64(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, *, scale: float
) -> tuple[Tensor, Tensor]:
    """One token a step, without a matmul: the definition."""
    group = v.shape[2] // q.shape[2]
    q, k, v, log_decay = (x.double() for x in (q, k, v, log_decay))
    q, k = (x.repeat_interleave(group, 2) for x in (q * scale, k))
    S = v.new_zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3]) if state is None else state.double()
    outs = []
    for t in range(q.shape[1]):
        decay = log_decay[:, t].exp().unsqueeze(-1)
        S = (decay if decay.dim() == 4 else decay.unsqueeze(-1)) * S + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        outs.append((S * q[:, t].unsqueeze(-1)).sum(-2))
    return torch.stack(outs, 1), S


def _step(q: Tensor, k: Tensor, v: Tensor, g_BHC: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """What is written and what is read, each a product with the state."""
    q, k = _spread(q, v), _spread(k, v)
    S = g_BHC.exp().unsqueeze(-1) * S + k.transpose(-1, -2) @ v
    return q @ S, S


def _dense_chunk(q: Tensor, k: Tensor, v: Tensor, g_BHC: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    rows = q.shape[2]
    q, k, v = (functional.pad(x, (0, 0, 0, CHUNK - rows)) for x in (q, k, v))
    G = functional.pad(g_BHC, (0, CHUNK - rows)).cumsum(-1)
    scores = _spread(q @ k.transpose(-1, -2), v) * _between(G)
    out = (_spread(q, v) @ S) * G.exp().unsqueeze(-1) + scores @ v
    return out[:, :, :rows], _next_state(k, v, G, S)


def _needed_chunk(q: Tensor, k: Tensor, v: Tensor, g_BHC: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    G = g_BHC.cumsum(-1)
    between, rows = _between(G), []
    for i in range(q.shape[2]):
        scores = q[:, :, i : i + 1] @ k[:, :, : i + 1].transpose(-1, -2)
        rows.append(_spread(scores, v) * between[:, :, i : i + 1, : i + 1] @ v[:, :, : i + 1])
    return (_spread(q, v) @ S) * G.exp().unsqueeze(-1) + torch.cat(rows, 2), _next_state(k, v, G, S)


def _spread(x: Tensor, v: Tensor) -> Tensor:
    """A value of the key heads for every head of values."""
    return x.repeat_interleave(v.shape[1] // x.shape[1], 1)


def _between(G: Tensor) -> Tensor:
    """e^(G_i - G_j) for j <= i, (B, H, C, C)."""
    rows = G.shape[-1]
    above = torch.ones(rows, rows, dtype=torch.bool, device=G.device).triu(1)
    return (G.unsqueeze(-1) - G.unsqueeze(-2)).masked_fill(above, -torch.inf).exp()


def _next_state(k: Tensor, v: Tensor, G: Tensor, S: Tensor) -> Tensor:
    end = (G[..., -1:] - G).exp().unsqueeze(-1)
    return G[..., -1:].exp().unsqueeze(-1) * S + (_spread(k, v) * end).transpose(-1, -2) @ v
