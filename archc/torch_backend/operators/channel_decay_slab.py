# B batch, S tokens, H heads, K key channels, V value channels, L chunks, C rows of a chunk
"""One slab of chunked linear attention with a decay a key channel, forward and backward by hand: GLA, arXiv 2312.06635.

Inside a chunk let G_i be the sum of the log decays up to row i, P = e^G, R = e^(G_last - G), S (K, V) the state that the chunk
starts from and q, k, v its rows. With

    M_ij = q_i . (e^(G_i - G_j) k_j)  for j <= i

the recurrence is

    o = M v + (q P) S        S' = P_last S + (k R)^T v

Backwards, from do and dS':

    dv = M^T do + (k R) dS'          dM = do v^T          dS = P_last dS' + (q P)^T do
    d(q P) = do S^T                  d(k R) = v dS'^T     dP_last = rows of S * dS'

Scores and the gradient of the decays are those of `gated_delta_slab`, without the delta term: blocks of h rows meet at their
border, so that only products of decays are formed, none above 1; and dG_i = q_i dq_i - k_i dk_i, from which the diagonal of M
and the last row of k R, which know no decay, are left out because they cancel there.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64


class ChannelSlab:
    """A slab's chunks in arithmetic precision, their scores, and the state that each of them starts from."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state_BHKV: Tensor, *, scale: float) -> None:
        """q, k, log_decay: (B, S, H, K); v: (B, S, H, V); the state in the precision of the arithmetic."""
        self.tokens, self.dtype, self.scale = q.shape[1], state_BHKV.dtype, scale
        # Blocks of rows are doubled, so a chunk has a power of two of them.
        self.rows = 1 << (min(CHUNK, self.tokens) - 1).bit_length()
        self.q_BLHCK, self.k_BLHCK, self.v_BLHCV = self._chunked(q) * scale, self._chunked(k), self._chunked(v)
        self.decay_BLHCK = self._chunked(log_decay).exp()
        self._score()
        self.late_BLHCK = self.k_BLHCK * self.suffix_BLHCK
        self.early_BLHCK = self.q_BLHCK * self.prefix_BLHCK
        self.last_BLHK1 = self.prefix_BLHCK[:, :, :, -1].unsqueeze(-1)
        written_BLHKV = self.late_BLHCK.transpose(3, 4) @ self.v_BLHCV
        states = [state_BHKV]
        for chunk in range(written_BLHKV.shape[1]):
            states.append(torch.addcmul(written_BLHKV[:, chunk], states[-1], self.last_BLHK1[:, chunk]))
        self.final_BHKV, self.states_BLHKV = states[-1], torch.stack(states[:-1], 1)

    def _chunked(self, x: Tensor) -> Tensor:
        """(B, S, H, D) -> (B, L, H, C, D) with rows of zeros behind the last token, which change no state."""
        missing = -self.tokens % self.rows
        x = x.to(self.dtype)
        if missing:
            x = torch.cat((x, x.new_zeros(x.shape[0], missing, *x.shape[2:])), 1)
        return x.unflatten(1, (-1, self.rows)).transpose(2, 3).contiguous()

    def _flat(self, x: Tensor) -> Tensor:
        """The way back."""
        return x.transpose(2, 3).flatten(1, 2)[:, : self.tokens]

    def _restart_products(self) -> None:
        """Blocks of one row: the product up to the row is its own decay, the product behind it is empty."""
        self.prefix_BLHCK, self.suffix_BLHCK = self.decay_BLHCK.clone(), torch.ones_like(self.decay_BLHCK)

    def _pair(self, h: int) -> tuple[Tensor, Tensor]:
        """Rows of every later block and columns of every earlier one, decayed to their border, (B, L, H, C / 2h, h, K)."""
        later, earlier = (slice(None),) * 4 + (1,), (slice(None),) * 4 + (0,)
        q, prefix, k, suffix = (
            x.unflatten(3, (-1, 2, h)) for x in (self.q_BLHCK, self.prefix_BLHCK, self.k_BLHCK, self.suffix_BLHCK)
        )
        return q[later] * prefix[later], k[earlier] * suffix[earlier]

    def _merge_products(self, h: int) -> None:
        """Blocks of h rows become blocks of 2h."""
        prefix, suffix = (x.unflatten(3, (-1, 2, h)) for x in (self.prefix_BLHCK, self.suffix_BLHCK))
        suffix[:, :, :, :, 0] *= prefix[:, :, :, :, 1, -1:]
        prefix[:, :, :, :, 1] *= prefix[:, :, :, :, 0, -1:]

    def _score(self) -> None:
        """M, and the products of the whole chunk: P and R."""
        self._restart_products()
        self.M_BLHCC = self.q_BLHCK.new_zeros(*self.q_BLHCK.shape[:-1], self.rows)
        self.M_BLHCC.diagonal(dim1=3, dim2=4).copy_((self.q_BLHCK * self.k_BLHCK).sum(-1))
        h = 1
        while h < self.rows:
            rows, columns = self._pair(h)
            _corners(self.M_BLHCC, h).copy_((rows @ columns.transpose(4, 5)).movedim(3, -1))
            self._merge_products(h)
            h *= 2

    def final_state(self) -> Tensor:
        """(B, H, K, V)."""
        return self.final_BHKV

    def output(self) -> Tensor:
        """(B, S, H, V)."""
        return self._flat(self.early_BLHCK @ self.states_BLHKV + self.M_BLHCC @ self.v_BLHCV)

    def backward(self, d_out: Tensor, d_final_state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of q, k, v, log_decay and the state that the slab starts from."""
        do_BLHCV = self._chunked(d_out)
        read_BLHKV = self.early_BLHCK.transpose(3, 4) @ do_BLHCV
        after = [d_final_state.to(self.dtype)]
        for chunk in reversed(range(read_BLHKV.shape[1])):
            after.append(torch.addcmul(read_BLHKV[:, chunk], after[-1], self.last_BLHK1[:, chunk]))
        d_after_BLHKV = torch.stack(after[-2::-1], 1)
        d_v = self.M_BLHCC.transpose(3, 4) @ do_BLHCV + self.late_BLHCK @ d_after_BLHKV
        d_M_BLHCC = do_BLHCV @ self.v_BLHCV.transpose(3, 4)
        d_q = (do_BLHCV @ self.states_BLHKV.transpose(3, 4)) * self.prefix_BLHCK
        d_k = (self.v_BLHCV @ d_after_BLHKV.transpose(3, 4)) * self.suffix_BLHCK
        last_rows = self._take_last_rows(d_k)
        d_last_BLHK = (self.states_BLHKV * d_after_BLHKV).sum(4) * self.last_BLHK1[..., 0]
        d_last_BLHK += (self.k_BLHCK * d_k).sum(3)
        self._score_backward(d_M_BLHCC, d_q, d_k)
        d_G = torch.addcmul(self.q_BLHCK * d_q, self.k_BLHCK, d_k, value=-1)
        d_G[:, :, :, -1] += d_last_BLHK
        d_decay = d_G.flip(3).cumsum(3).flip(3)
        for row, value in last_rows:
            row.copy_(value)
        diagonal = d_M_BLHCC.diagonal(dim1=3, dim2=4).unsqueeze(-1)
        d_q.addcmul_(diagonal, self.k_BLHCK)
        d_k.addcmul_(diagonal, self.q_BLHCK)
        d_q, d_k, d_v, d_decay = (self._flat(x) for x in (d_q.mul_(self.scale), d_k, d_v, d_decay))
        return d_q, d_k, d_v, d_decay, after[-1]

    def _take_last_rows(self, x_BLHCK: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Zeroes every chunk's last row that holds a token; returns the rows, as views, with the values they had."""
        last = (self.tokens - 1) % self.rows
        taken = [(row, row.clone()) for row in (x_BLHCK[:, :-1, :, -1], x_BLHCK[:, -1, :, last])]
        for row, _ in taken:
            row.zero_()
        return taken

    def _score_backward(self, d_M_BLHCC: Tensor, d_q: Tensor, d_k: Tensor) -> None:
        """Adds what M, off its diagonal, hands back to the gradients of its rows and columns."""
        self._restart_products()
        h = 1
        while h < self.rows:
            rows, columns = self._pair(h)
            d_corner = _corners(d_M_BLHCC, h).movedim(-1, 3)
            prefix, suffix, q, k = (
                x.unflatten(3, (-1, 2, h)) for x in (self.prefix_BLHCK, self.suffix_BLHCK, d_q, d_k)
            )
            q[:, :, :, :, 1].addcmul_(d_corner @ columns, prefix[:, :, :, :, 1])
            k[:, :, :, :, 0].addcmul_(d_corner.transpose(4, 5) @ rows, suffix[:, :, :, :, 0])
            self._merge_products(h)
            h *= 2


def _corners(matrices: Tensor, h: int) -> Tensor:
    """The lower left corners of the diagonal blocks of 2h rows, in place: (B, L, H, C, C) -> (B, L, H, h, h, C / 2h)."""
    blocks = matrices.unflatten(4, (-1, 2 * h)).unflatten(3, (-1, 2 * h))
    return blocks.diagonal(dim1=3, dim2=5)[:, :, :, h:, :h]
