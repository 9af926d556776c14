"""Readable attention to compressed rows that also says who looked where: the judge of native sparse attention."""

# Shape suffixes: B batch, S new tokens, R compressed rows, N query heads, K key-value heads, H key width, V value width.

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, float64

Shares = Callable[..., tuple[Tensor, Tensor]]


def shares_twin(pairs: str) -> Shares:
    """The twin that computes ``needed`` pairs one query at a time, or the ``dense`` rectangle behind a mask."""
    return one_query_at_a_time if pairs == "needed" else dense


def dense(q_BNSH: Tensor, k_BKRH: Tensor, v_BKRV: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(output (B, N, S, V), shares summed over the heads of a group (B, K, S, R)): all scores in float64, then the mask."""
    kv_heads = k_BKRH.shape[1]
    group = q_BNSH.shape[1] // kv_heads
    q, k, v = q_BNSH.double(), k_BKRH.double().repeat_interleave(group, 1), v_BKRV.double().repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~seen, -1e30)
    shares = scores.softmax(-1).masked_fill(~seen, 0.0)
    return (shares @ v).to(v_BKRV.dtype), shares.unflatten(1, (kv_heads, group)).sum(2).float()


def one_query_at_a_time(
    q_BNSH: Tensor, k_BKRH: Tensor, v_BKRV: Tensor, seen: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The same, each query against only the rows it sees, so that a counter sees the needed pairs and no others."""
    batch, heads, seq, _ = q_BNSH.shape
    kv_heads, rows = k_BKRH.shape[1], k_BKRH.shape[2]
    group = heads // kv_heads
    k, v = k_BKRH.double().repeat_interleave(group, 1), v_BKRV.double().repeat_interleave(group, 1)
    out = q_BNSH.new_zeros(batch, heads, seq, v.shape[-1], dtype=float64)
    shares = q_BNSH.new_zeros(batch, heads, seq, rows, dtype=float64)
    for b in range(batch):
        for s in range(seq):
            index = seen[min(b, seen.shape[0] - 1), 0, s].nonzero().flatten()
            if len(index):
                scores = q_BNSH[b, :, s].double().unsqueeze(1) @ k[b][:, index].transpose(-1, -2) * scale
                weights = scores.softmax(-1)
                out[b, :, s] = (weights @ v[b][:, index]).squeeze(1)
                shares[b, :, s, index] = weights.squeeze(1)
    return out.to(v_BKRV.dtype), shares.unflatten(1, (kv_heads, group)).sum(2).float()
