# B batch, S tokens, G groups, H heads, K key channels, V value channels, N batch * heads
"""Linear attention with a decay a head, spelled out: the state space duality of Mamba-2 (arXiv 2405.21060).

Layouts as `archc.torch_backend.operators.gated_linear.gated_linear`; everything in float64. Slow on purpose: these judge the
fast operator.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from archc.ops.linear_attention import CHUNK


def state_space_twin(pairs: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rule in matmuls: chunks that count ``pairs`` for many tokens, the recurrence for one."""

    def rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        if state is None:
            # The first chunk's products with an empty state are part of the form, so they are computed and counted.
            state = q.new_zeros(q.shape[0], v.shape[2], q.shape[3], v.shape[3])
        if q.shape[1] == 1:
            out, final = state_space_step(q, k, v, log_decay, state)
        else:
            out, final = _chunked(q, k, v, log_decay, state, pairs)
        return out.to(v.dtype), final.to(torch.float64 if v.dtype == torch.float64 else torch.float32)

    return rule


def state_space_step(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token: what is written, and what the query reads, each a product with the state."""
    q_BHK, k_BHK = (x[:, 0].double().repeat_interleave(v.shape[2] // x.shape[2], 1) for x in (q, k))
    S = state.double() * log_decay[:, 0].double().exp()[..., None, None]
    S = S + k_BHK.unsqueeze(-1) @ v[:, 0].double().unsqueeze(-2)
    return (q_BHK.unsqueeze(-2) @ S).transpose(1, 2), S


def _chunked(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, pairs: str) -> tuple[Tensor, Tensor]:
    """One chunk at a time, for torch's FlopCounterMode: rows and pairs that count, or whole chunks and squares."""
    batch, heads, per_group = v.shape[0], v.shape[2], v.shape[2] // q.shape[2]
    q, k, v, g = (x.double().transpose(1, 2).flatten(0, 1) for x in (q, k, v, log_decay))
    S = state.double().flatten(0, 1)
    outs = []
    for start in range(0, q.shape[1], CHUNK):
        parts = [x[:, start : start + CHUNK] for x in (q, k, v, g.unsqueeze(-1))]
        rows = parts[0].shape[1]
        if pairs == "dense":
            parts = [functional.pad(x, (0, 0, 0, CHUNK - rows)) for x in parts]
        q_now, k_now, v_now, g_now = parts
        out, S = _chunk(q_now, k_now, v_now, g_now, S, per_group=per_group, dense=pairs == "dense")
        outs.append(out[:, :rows])
    return torch.cat(outs, 1).unflatten(0, (batch, heads)).transpose(1, 2), S.unflatten(0, (batch, heads))


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor, *, per_group: int, dense: bool
) -> tuple[Tensor, Tensor]:
    """q, k: (batch * groups, rows, K); v, g: (N, rows, V or 1); S: (N, K, V)."""
    G = g.cumsum(1)
    between = (G - G.transpose(1, 2)).tril().exp().tril()
    if dense:
        inside = torch.bmm(between * torch.bmm(q, k.transpose(1, 2)).repeat_interleave(per_group, 0), v)
    else:
        rows = []
        for i in range(q.shape[1]):
            scores = torch.bmm(q[:, i : i + 1], k[:, : i + 1].transpose(1, 2)).repeat_interleave(per_group, 0)
            rows.append(torch.bmm(between[:, i : i + 1, : i + 1] * scores, v[:, : i + 1]))
        inside = torch.cat(rows, 1)
    q, k = (x.repeat_interleave(per_group, 0) for x in (q, k))
    out = inside + torch.bmm(q * G.exp(), S)
    last = G[:, -1:]
    return out, last.exp() * S + torch.bmm((k * (last - G).exp()).transpose(1, 2), v)
