# B batch, S tokens, H heads, K key channels, V value channels, N batch * heads, C rows of a chunk
"""The gated delta rule spelled out: Kimi Delta Attention (arXiv 2510.26692), Gated DeltaNet (arXiv 2412.06464).

Layouts as `archc.torch_backend.operators.gated_delta.gated_delta_rule`; everything in float64. Slow on purpose: these
judge the fast operator.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def recurrent_float64(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor | None, *, scale: float
) -> tuple[Tensor, Tensor]:
    """One token a step: the definition. Returns out (B, S, H, V) and the final state (B, H, K, V)."""
    q, k, v, log_decay, beta, S = _in_float64(q, k, v, log_decay, beta, state)
    outs = []
    for t in range(q.shape[1]):
        k_BHK1 = k[:, t].unsqueeze(-1)
        S = log_decay[:, t].exp().unsqueeze(-1) * S
        read_BHV = (S * k_BHK1).sum(-2)
        S = S + k_BHK1 * (beta[:, t].unsqueeze(-1) * (v[:, t] - read_BHV)).unsqueeze(-2)
        outs.append((S * (q[:, t] * scale).unsqueeze(-1)).sum(-2))
    return torch.stack(outs, 1), S


def chunked_counted(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None,
    *,
    scale: float,
    chunk: int = 64,
    pairs: str = "needed",
) -> tuple[Tensor, Tensor]:
    """The chunked algorithm of the papers, one chunk at a time, for torch's FlopCounterMode.

    pairs="needed" multiplies the rows there are and the pairs that count, row by row; "dense" pads every chunk and
    multiplies full squares. The scores factor as (q e^G)(k e^-G)^T, which float64 bears for mild decays only.
    """
    if pairs not in ("needed", "dense"):
        raise ValueError(f"pairs is {pairs!r}, not 'needed' or 'dense'")
    batch, tokens, heads, _ = q.shape
    q, k, v, log_decay, beta, S = _in_float64(q, k, v, log_decay, beta, state)
    q, k, v, g = (x.transpose(1, 2).flatten(0, 1) for x in (q * scale, k, v, log_decay))
    beta_NS1, S = beta.transpose(1, 2).flatten(0, 1).unsqueeze(-1), S.flatten(0, 1)
    outs = []
    for start in range(0, tokens, chunk):
        rows = min(chunk, tokens - start)
        parts = [x[:, start : start + rows] for x in (q, k, v, g, beta_NS1)]
        if pairs == "dense":
            parts = [F.pad(x, (0, 0, 0, chunk - rows)) for x in parts]
        out, S = (_dense_chunk if pairs == "dense" else _needed_chunk)(*parts, S)
        outs.append(out[:, :rows])
    out = torch.cat(outs, 1).unflatten(0, (batch, heads)).transpose(1, 2)
    return out, S.unflatten(0, (batch, heads))


def _dense_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    rows, keys = q.shape[1:]
    G = g.cumsum(1)
    k_up, k_down = k * G.exp(), (k * (-G).exp()).transpose(1, 2)
    A = (beta * torch.bmm(k_up, k_down)).tril(-1)
    Q = torch.bmm(q * G.exp(), k_down).tril()
    eye = torch.eye(rows, dtype=q.dtype, device=q.device).expand_as(A)
    T = torch.linalg.solve_triangular(A + eye, eye, upper=False, unitriangular=True)
    w, u = torch.bmm(T, torch.cat((beta * k_up, beta * v), -1)).split((keys, v.shape[-1]), -1)
    v_new = u - torch.bmm(w, S)
    return torch.bmm(q * G.exp(), S) + torch.bmm(Q, v_new), _next_state(k, G, v_new, S)


def _needed_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    rows, keys = q.shape[1:]
    G = g.cumsum(1)
    q_up, k_up, k_down = q * G.exp(), k * G.exp(), (k * (-G).exp()).transpose(1, 2)
    right = torch.cat((beta * k_up, beta * v), -1)
    solved = [right[:, :1]]
    for i in range(1, rows):
        A_row = beta[:, i : i + 1] * torch.bmm(k_up[:, i : i + 1], k_down[:, :, :i])
        solved.append(right[:, i : i + 1] - torch.bmm(A_row, torch.cat(solved, 1)))
    w, u = torch.cat(solved, 1).split((keys, v.shape[-1]), -1)
    v_new = u - torch.bmm(w, S)
    out = torch.bmm(q_up, S)
    inside = []
    for i in range(rows):
        Q_row = torch.bmm(q_up[:, i : i + 1], k_down[:, :, : i + 1])
        inside.append(torch.bmm(Q_row, v_new[:, : i + 1]))
    return out + torch.cat(inside, 1), _next_state(k, G, v_new, S)


def _next_state(k: Tensor, G: Tensor, v_new: Tensor, S: Tensor) -> Tensor:
    last = G[:, -1:]
    return last.exp().transpose(1, 2) * S + torch.bmm((k * (last - G).exp()).transpose(1, 2), v_new)


def _in_float64(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A decay per head becomes one per key channel (a broadcast), no state becomes zeros."""
    q, k, v, log_decay, beta = (x.double() for x in (q, k, v, log_decay, beta))
    if log_decay.dim() == 3:
        log_decay = log_decay.unsqueeze(-1)
    batch, _, heads, keys = q.shape
    state = q.new_zeros(batch, heads, keys, v.shape[-1]) if state is None else state.double()
    return q, k, v, log_decay.expand_as(k), beta, state
