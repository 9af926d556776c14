# B batch, S tokens, G groups of heads, R heads of a group, K key channels, V value channels, L chunks, C rows of a chunk
"""One slab (at most eight chunks of 64 tokens) of chunked linear attention with a decay a head, forward and backward by hand.

Lightning attention, arXiv 2401.04658; Mamba-2, arXiv 2405.21060. Inside a chunk let G_ij be the sum of the log decays of rows
j + 1 to i, P_i = e^(sum up to i), R_j = e^(G_last,j), S (K, V) the state the chunk starts from and q, k, v its rows. With

    M_ij = (q_i . k_j) e^(G_ij)  for j <= i

the recurrence is

    o = M v + P (q S)        S' = P_last S + k^T (R v)

Backwards, from do and dS':

    dv = M^T do + R (k dS')      dM = do v^T      dS = P_last dS' + q^T (P do)
    dq = dA k + (P do) S^T       dk = dA^T q + (R v) dS'^T       with dA the sum of dM e^G over the heads of a group

A log decay of row t is part of G_ij for j < t <= i, of P_i for i >= t, of R_j for j < t, and of P_last. Each of these four
sums is taken as it stands. Sums G_ij are cumulated from row j on, not taken as differences of sums from the chunk's
beginning: a strong decay elsewhere in the chunk costs no digits, and no exponent is above 0. The heads of a group lie side by
side in the columns of v and S, so that their products with q and k are one.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64


class Slab:
    """A slab's chunks in arithmetic precision, its scores, decays, and the state that each chunk starts from."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state_BHKV: Tensor, *, scale: float) -> None:
        """q, k: (B, S, G, K); v: (B, S, H, V); log_decay: (B, S, H); the state in the precision of the arithmetic."""
        self.tokens, self.groups, self.dtype, self.scale = q.shape[1], q.shape[2], state_BHKV.dtype, scale
        self.rows = min(CHUNK, self.tokens)
        self.heads, self.values = v.shape[2] // self.groups, v.shape[3]
        self.q_BLGCK, self.k_BLGCK = self._grouped(q) * scale, self._grouped(k)
        self.v_BLGCRV = self._grouped(v.unflatten(2, (self.groups, self.heads)))
        decay_BLGCR = self._grouped(log_decay.unflatten(2, (self.groups, self.heads)))
        self.between_BLGRCC = _between(decay_BLGCR.transpose(3, 4))
        self.prefix_BLGCR1 = decay_BLGCR.cumsum(3).exp_().unsqueeze(-1)
        self.suffix_BLGCR1 = self.between_BLGRCC[..., -1, :].transpose(3, 4).unsqueeze(-1)
        self.last_BLG1R1 = self.prefix_BLGCR1[:, :, :, -1:]
        self.scores_BLGCC = self.q_BLGCK @ self.k_BLGCK.transpose(3, 4)
        self.late_BLGCX = (self.v_BLGCRV * self.suffix_BLGCR1).flatten(4)
        self._run(self._packed(state_BHKV))

    def _grouped(self, x: Tensor) -> Tensor:
        """(B, S, G, ...) -> (B, L, G, C, ...) with rows of zeros behind the last token, which change no state."""
        missing = -self.tokens % self.rows
        x = x.to(self.dtype)
        if missing:
            x = torch.cat((x, x.new_zeros(x.shape[0], missing, *x.shape[2:])), 1)
        return x.unflatten(1, (-1, self.rows)).transpose(2, 3).contiguous()

    def _flat(self, x: Tensor) -> Tensor:
        """The way back."""
        return x.transpose(2, 3).flatten(1, 2)[:, : self.tokens]

    def _packed(self, state_BHKV: Tensor) -> Tensor:
        """(B, H, K, V) -> (B, G, K, R * V)."""
        return state_BHKV.unflatten(1, (self.groups, self.heads)).transpose(2, 3).flatten(3)

    def _unpacked(self, state_BGKX: Tensor) -> Tensor:
        return state_BGKX.unflatten(3, (self.heads, self.values)).transpose(2, 3).flatten(1, 2)

    def _decayed(self, state_BGKX: Tensor, chunk: int) -> Tensor:
        """A state times what a chunk leaves of it."""
        state = state_BGKX.unflatten(3, (self.heads, self.values))
        return (state * self.last_BLG1R1[:, chunk]).flatten(3)

    def _run(self, state_BGKX: Tensor) -> None:
        written_BLGKX = self.k_BLGCK.transpose(3, 4) @ self.late_BLGCX
        states = [state_BGKX.to(self.dtype)]
        for chunk in range(written_BLGKX.shape[1]):
            states.append(self._decayed(states[-1], chunk).add_(written_BLGKX[:, chunk]))
        self.final_BGKX, self.states_BLGKX = states[-1], torch.stack(states[:-1], 1)
        self.read_BLGCRV = (self.q_BLGCK @ self.states_BLGKX).unflatten(4, (self.heads, self.values))

    def final_state(self) -> Tensor:
        """(B, H, K, V)."""
        return self._unpacked(self.final_BGKX)

    def output(self) -> Tensor:
        """(B, S, H, V)."""
        mixed_BLGRCC = self.between_BLGRCC * self.scores_BLGCC.unsqueeze(3)
        out_BLGCRV = (mixed_BLGRCC @ self.v_BLGCRV.transpose(3, 4)).transpose(3, 4)
        return self._flat(out_BLGCRV + self.read_BLGCRV * self.prefix_BLGCR1).flatten(2, 3)

    def backward(self, d_out: Tensor, d_final_state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of q, k, v, log_decay and the state that the slab starts from."""
        do_BLGCRV = self._grouped(d_out.unflatten(2, (self.groups, self.heads)))
        early_BLGCRV = do_BLGCRV * self.prefix_BLGCR1
        d_after_BLGKX, d_state = self._states_backward(early_BLGCRV.flatten(4), self._packed(d_final_state))
        do_BLGRCV, v_BLGRCV = do_BLGCRV.transpose(3, 4), self.v_BLGCRV.transpose(3, 4)
        mixed_BLGRCC = self.between_BLGRCC * self.scores_BLGCC.unsqueeze(3)
        seen_BLGCRV = (self.k_BLGCK @ d_after_BLGKX).unflatten(4, (self.heads, self.values))
        d_v = (mixed_BLGRCC.transpose(4, 5) @ do_BLGRCV).transpose(3, 4) + seen_BLGCRV * self.suffix_BLGCR1
        d_mixed_BLGRCC = do_BLGRCV @ v_BLGRCV.transpose(4, 5)
        d_scores_BLGCC = (d_mixed_BLGRCC * self.between_BLGRCC).sum(3)
        d_q = d_scores_BLGCC @ self.k_BLGCK + early_BLGCRV.flatten(4) @ self.states_BLGKX.transpose(3, 4)
        d_k = d_scores_BLGCC.transpose(3, 4) @ self.q_BLGCK + self.late_BLGCX @ d_after_BLGKX.transpose(3, 4)
        d_decay_BLGCR = self._decay_backward(
            d_mixed_BLGRCC.mul_(mixed_BLGRCC),
            (early_BLGCRV * self.read_BLGCRV).sum(-1),
            (self.late_BLGCX.view_as(seen_BLGCRV) * seen_BLGCRV).sum(-1),
            (self.states_BLGKX * d_after_BLGKX).sum(3).unflatten(3, (self.heads, self.values)).sum(-1),
        )
        d_q, d_k, d_v, d_decay = (self._flat(x) for x in (d_q.mul_(self.scale), d_k, d_v, d_decay_BLGCR))
        return d_q, d_k, d_v.flatten(2, 3), d_decay.flatten(2, 3), d_state

    def _states_backward(self, early_BLGCX: Tensor, d_final_BGKX: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the state behind each chunk, (B, L, G, K, R * V), and of the slab's first, (B, H, K, V)."""
        read_BLGKX = self.q_BLGCK.transpose(3, 4) @ early_BLGCX
        after = [d_final_BGKX.to(self.dtype)]
        for chunk in reversed(range(read_BLGKX.shape[1])):
            after.append(self._decayed(after[-1], chunk).add_(read_BLGKX[:, chunk]))
        return torch.stack(after[-2::-1], 1), self._unpacked(after[-1])

    def _decay_backward(
        self, between_BLGRCC: Tensor, prefix_BLGCR: Tensor, suffix_BLGCR: Tensor, last_BLGR: Tensor
    ) -> Tensor:
        """From the gradients of the exponents of M, P, R and P_last to those of the log decays, (B, L, G, C, R)."""
        later = between_BLGRCC.flip(4).cumsum(4).flip(4).tril_(-1)
        d_BLGCR = later.sum(-1).transpose(3, 4) + prefix_BLGCR.flip(3).cumsum(3).flip(3)
        earlier = suffix_BLGCR.cumsum(3)[:, :, :, :-1]
        d_BLGCR[:, :, :, 1:] += earlier
        last = last_BLGR * self.last_BLG1R1[:, :, :, 0, :, 0]
        return d_BLGCR + last.unsqueeze(3)


def _between(log_decay: Tensor) -> Tensor:
    """(..., C) -> e^(sum over rows j + 1 to i) for j <= i, 0 above, (..., C, C)."""
    rows = log_decay.shape[-1]
    sums = log_decay.unsqueeze(-1).expand(*log_decay.shape, rows).tril(-1)
    return torch.cumsum(sums, -2, out=sums).exp_().tril_()
