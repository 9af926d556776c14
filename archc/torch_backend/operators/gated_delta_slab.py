# B batch, S tokens, H heads, K key channels, V value channels, G decay channels (K, or 1 for a decay per head)
# L chunks of a slab, M batch * heads of a slab, N = L * M chunks in all, C rows of a chunk, 2 = (query, beta * key)
"""One slab (at most eight chunks of 64 tokens) of the chunked gated delta rule, forward and backward by hand.

Kimi Linear, arXiv 2510.26692; Gated DeltaNet, arXiv 2412.06464. Inside a chunk let G_i be the sum of the log decays up
to row i, P = e^G, R = e^(G_last - G), S (K, V) the state the chunk starts from and q, k, v its rows. With

    A_ij = beta_i k_i . (e^(G_i - G_j) k_j)  for j < i        T = (I + A)^-1
    Q_ij =      q_i . (e^(G_i - G_j) k_j)    for j <= i

the recurrence is, with X_i = beta_i (v_i - k_i^T e^(g_i) S_(i-1)) the value row i really writes,

    Z = beta v - (beta k P) S        X = T Z        o = (q P) S + Q X        S' = P_last S + (k R)^T X

Applying T to Z, not to beta v and beta k P apart as the papers do (u - w S), saves one product a chunk and two buffers.

Backwards, from do and dS':

    dX = Q^T do + (k R) dS'     dZ = T^T dX     dS = P_last dS' + (q P)^T do - (beta k P)^T dZ
    d(q P) = do S^T             d(beta k P) = -dZ S^T                     d(k R) = X dS'^T
    dQ = do X^T                 dA = -T^T (dX Z^T) T^T = -dZ X^T          dP_last = rows of S * dS'

A decay enters only as e^(G_i - G_j) between a row factor (q_i or beta_i k_i) and a column factor (k_j), so its
gradient needs no product of its own: dG_i = q_i dq_i + (beta k)_i d(beta k)_i - k_i dk_i with dk the gradient as a
column; G_last also takes the column terms of k R and P_last dP_last; dg_t is the sum of dG_i over i >= t. The terms
without a decay, Q's diagonal and the last row of k R, cancel there and are left out: their rounding would drown the
tiny gradient of a strong decay.

No exponential of a difference is ever formed. Two neighbouring blocks of h rows meet at their border: a row of the
later block carries the product of the decays e^g from the border up to itself (prefix), a column of the earlier block
the product from behind itself up to the border (suffix). With g <= 0 all of them lie in [0, 1] and cannot overflow
however strong the decay. Doubling h takes the blocks from single rows to the whole chunk; both products, Q, and T as
[[T1, 0], [-T2 A21 T1, T2]] grow on the way, and end as P, R, Q and T above.
"""

import torch
from torch import Tensor

CHUNK = 64


class Workspace:
    """Named scratch buffers, kept between slabs: the page faults of fresh ones would cost more than the arithmetic."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, zeros: bool = False) -> Tensor:
        """A contiguous tensor of that shape over the memory the name last had; where nothing was written yet, anything,
        or with `zeros` zeros."""
        size = 1
        for length in shape:
            size *= length
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            create = torch.zeros if zeros else torch.empty
            buffer = self._buffers[name] = create(size, device=self.device, dtype=self.dtype)
        return buffer[:size].view(shape)


def load(source_BSHD: Tensor, target_LBHCD: Tensor) -> None:
    """Copies tokens into chunks, casting on the way; rows behind the last token become zeros, which change no state."""
    rows = target_LBHCD.shape[3]
    full, rest = divmod(source_BSHD.shape[1], rows)
    if full:
        chunks = source_BSHD[:, : full * rows].unflatten(1, (full, rows))
        target_LBHCD[:full].copy_(chunks.permute(1, 0, 3, 2, 4))
    if rest:
        target_LBHCD[full, :, :, rest:].zero_()
        target_LBHCD[full, :, :, :rest].copy_(source_BSHD[:, full * rows :].transpose(1, 2))


def store(source_LBHCD: Tensor, target_BSHD: Tensor) -> None:
    """The way back of `load`."""
    rows = source_LBHCD.shape[3]
    full, rest = divmod(target_BSHD.shape[1], rows)
    if full:
        chunks = target_BSHD[:, : full * rows].unflatten(1, (full, rows))
        chunks.copy_(source_LBHCD[:full].permute(1, 0, 3, 2, 4))
    if rest:
        target_BSHD[:, full * rows :].copy_(source_LBHCD[full, :, :, :rest].transpose(1, 2))


def _corners(matrices: Tensor, h: int) -> Tensor:
    """The lower left corners (N, C / 2h, h, .., h) of the diagonal blocks of 2h rows, in place, of (N, C, .., C)."""
    count, size = matrices.shape[:2]
    per_matrix, per_row, *middle, per_column = matrices.stride()
    return matrices.as_strided(
        (count, size // (2 * h), h, *matrices.shape[2:-1], h),
        (per_matrix, 2 * h * (per_row + per_column), per_row, *middle, per_column),
        matrices.storage_offset() + h * per_row,
    )


class Slab:
    """A slab's chunks in the workspace: `solve` runs the recurrence, then `output` or `backward` reads what it left."""

    def __init__(self, space: Workspace, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> None:
        """q, k: (B, S, H, K); v: (B, S, H, V); log_decay: (B, S, H, K) or (B, S, H, 1); beta: (B, S, H, 1)."""
        batch, tokens, heads, keys = q.shape
        self.space, self.batch, self.tokens, self.heads, self.keys = space, batch, tokens, heads, keys
        self.values, self.gates = v.shape[3], log_decay.shape[3]
        self.L, self.M = -(-tokens // CHUNK), batch * heads
        self.N = self.L * self.M
        n, c = self.N, CHUNK
        # Query and beta * key lie row beside row, so that one product serves the scores of both.
        self.qb_NC2K = space("qb", n, c, 2, keys)
        load(q, self._by_head(self.qb_NC2K)[..., 0, :])
        self.k_NCK = self._loaded("k", k)
        self.v_NCV = self._loaded("v", v)
        self.beta_NC1 = self._loaded("beta", beta)
        self.decay_NCG = self._loaded("decay", log_decay).exp_()
        torch.mul(self.k_NCK, self.beta_NC1, out=self.qb_NC2K[:, :, 1])

    def _by_head(self, tensor_N: Tensor) -> Tensor:
        return tensor_N.view(self.L, self.batch, self.heads, *tensor_N.shape[1:])

    def _by_chunk(self, tensor_N: Tensor) -> Tensor:
        return tensor_N.unflatten(0, (self.L, self.M))

    def _loaded(self, name: str, source_BSHD: Tensor) -> Tensor:
        target_NCD = self.space(name, self.N, CHUNK, source_BSHD.shape[3])
        load(source_BSHD, self._by_head(target_NCD))
        return target_NCD

    def _restart_products(self) -> None:
        """Blocks of one row: the product up to the row is its own decay, the product behind it is empty."""
        self.prefix_NCG = self.space("prefix", self.N, CHUNK, self.gates).copy_(self.decay_NCG)
        self.suffix_NCG = self.space("suffix", self.N, CHUNK, self.gates).fill_(1)

    def _pair(self, h: int) -> tuple[Tensor, Tensor]:
        """Rows of every later block (n, 2h, K) and columns of every earlier one (n, h, K), decayed to their border."""
        n = self.N * CHUNK // (2 * h)
        rows = self.space("rows", n, h, 2, self.keys)
        prefix = self.prefix_NCG.view(n, 2, h, 1, self.gates)[:, 1]
        torch.mul(self.qb_NC2K.view(n, 2, h, 2, self.keys)[:, 1], prefix, out=rows)
        columns = self.space("columns", n, h, self.keys)
        torch.mul(self.k_NCK.view(n, 2, h, -1)[:, 0], self.suffix_NCG.view(n, 2, h, -1)[:, 0], out=columns)
        return rows.view(n, 2 * h, self.keys), columns

    def _merge_products(self, h: int) -> None:
        """Blocks of h rows become blocks of 2h."""
        n = self.N * CHUNK // (2 * h)
        prefix, suffix = self.prefix_NCG.view(n, 2, h, -1), self.suffix_NCG.view(n, 2, h, -1)
        suffix[:, 0] *= prefix[:, 1, -1:]
        prefix[:, 1] *= prefix[:, 0, -1:]

    def _scores(self) -> None:
        """Leaves Q and T, both (N, C, C), and the products of the whole chunk.

        Entries above the diagonals are never written and stay zeros from slab to slab.
        """
        self._restart_products()
        space, q_NCK = self.space, self.qb_NC2K[:, :, 0]
        product_NCK = torch.mul(q_NCK, self.k_NCK, out=space("temporary", *self.k_NCK.shape))
        self.Q_NCC = space("Q", self.N, CHUNK, CHUNK, zeros=True)
        self.Q_NCC.diagonal(dim1=1, dim2=2).copy_(product_NCK.sum(-1))
        inverse = space("T1", self.N * CHUNK, 1, 1).fill_(1)
        h = 1
        while h < CHUNK:
            n = self.N * CHUNK // (2 * h)
            rows, columns = self._pair(h)
            corner = torch.bmm(rows, columns.transpose(1, 2), out=space("corner", n, 2 * h, h)).view(n, h, 2, h)
            _corners(self.Q_NCC, h).copy_(corner[:, :, 0].view(self.N, -1, h, h))
            earlier, later = inverse.view(n, 2, h, h).unbind(1)
            below = corner[:, :, 1]
            if h > 1:
                half = torch.bmm(later, below, out=space("half", n, h, h))
                below = torch.bmm(half, earlier, out=space("below", n, h, h))
            merged = space(f"T{2 * h}", n, 2 * h, 2 * h, zeros=True)
            merged.as_strided((n, 2, h, h), (4 * h * h, 2 * h * h + h, 2 * h, 1)).copy_(inverse.view(n, 2, h, h))
            torch.neg(below, out=merged[:, h:, :h])
            inverse = merged
            self._merge_products(h)
            h *= 2
        self.T_NCC = inverse

    def solve(self, state_BHKV: Tensor) -> Tensor:
        """Runs the recurrence over the chunks from the state (B, H, K, V); returns the state it ends in, as a view."""
        space, n, c, keys, values = self.space, self.N, CHUNK, self.keys, self.values
        self._scores()
        self.decayed_NC2K = torch.mul(self.qb_NC2K, self.prefix_NCG.unsqueeze(2), out=space("decayed", n, c, 2, keys))
        self.k_end_NCK = torch.mul(self.k_NCK, self.suffix_NCG, out=space("k_end", n, c, keys))
        self.last_NG1 = space("last", n, self.gates, 1).copy_(self.prefix_NCG[:, -1].unsqueeze(-1))
        writes_NCV = torch.mul(self.v_NCV, self.beta_NC1, out=space("writes", n, c, values))
        states = space("states", self.L + 1, self.M, keys, values)
        states[0] = state_BHKV.reshape(self.M, keys, values)
        self.states_NKV, self.X_NCV = states[:-1].view(n, keys, values), space("X", n, c, values)
        rest = space("rest", self.M, c, values)
        chunks = zip(
            self._by_chunk(writes_NCV).unbind(),
            self._by_chunk(self.decayed_NC2K[:, :, 1]).unbind(),
            self._by_chunk(self.T_NCC).unbind(),
            self._by_chunk(self.X_NCV).unbind(),
            self._by_chunk(self.last_NG1).unbind(),
            self._by_chunk(self.k_end_NCK).transpose(2, 3).unbind(),
            states[:-1].unbind(),
            states[1:].unbind(),
            strict=True,
        )
        for writes, keys_now, inverse, written, last, keys_end, before, after in chunks:
            torch.baddbmm(writes, keys_now, before, alpha=-1, out=rest)
            torch.bmm(inverse, rest, out=written)
            torch.mul(before, last, out=after).baddbmm_(keys_end, written)
        return states[-1].view(self.batch, self.heads, keys, values)

    def output(self, out_BSHV: Tensor, scale: float) -> None:
        """Writes the outputs; the scale of the queries is applied here, once, to V channels."""
        o_NCV = self.space("o", *self.X_NCV.shape)
        torch.bmm(self.decayed_NC2K[:, :, 0], self.states_NKV, out=o_NCV).baddbmm_(self.Q_NCC, self.X_NCV)
        store(self._by_head(o_NCV.mul_(scale)), out_BSHV)

    def backward(self, d_out_BSHV: Tensor, d_state_BHKV: Tensor, scale: float, d_inputs: tuple[Tensor, ...]) -> Tensor:
        """From the gradients of the outputs and of the end state to those of q, k, v, log_decay, beta (written into
        d_inputs) and of the start state (returned, as a view)."""
        space, n, c, keys, values = self.space, self.N, CHUNK, self.keys, self.values
        rows_NC2V = space("d_rows", n, c, 2, values)
        do_NCV = rows_NC2V[:, :, 0]
        load(d_out_BSHV, self._by_head(do_NCV))
        do_NCV.mul_(scale)
        d_states = space("d_states", self.L + 1, self.M, keys, values)
        d_states[-1] = d_state_BHKV.reshape(self.M, keys, values)
        torch.bmm(self.decayed_NC2K[:, :, 0].transpose(1, 2), do_NCV, out=d_states[:-1].view(n, keys, values))
        dX_NCV = torch.bmm(self.Q_NCC.transpose(1, 2), do_NCV, out=space("dX", n, c, values))
        dZ_NCV = space("dZ", n, c, values)
        by_chunk = zip(
            self._by_chunk(dX_NCV).unbind(),
            self._by_chunk(dZ_NCV).unbind(),
            self._by_chunk(self.T_NCC).transpose(2, 3).unbind(),
            self._by_chunk(self.k_end_NCK).unbind(),
            self._by_chunk(self.last_NG1).unbind(),
            self._by_chunk(self.decayed_NC2K[:, :, 1]).transpose(2, 3).unbind(),
            d_states[:-1].unbind(),
            d_states[1:].unbind(),
            strict=True,
        )
        for dX, dZ, inverse, keys_end, last, keys_now, before, after in reversed(list(by_chunk)):
            dX.baddbmm_(keys_end, after)
            torch.bmm(inverse, dX, out=dZ)
            before.addcmul_(after, last).baddbmm_(keys_now, dZ, alpha=-1)
        torch.neg(dZ_NCV, out=rows_NC2V[:, :, 1])

        rows, d_end_NKV = rows_NC2V.view(n, 2 * c, values), d_states[1:].view(n, keys, values)
        d_scores_NC2C = torch.bmm(rows, self.X_NCV.transpose(1, 2), out=space("d_scores", n, 2 * c, c)).view(n, c, 2, c)
        d_qb_NC2K = torch.bmm(rows, self.states_NKV.transpose(1, 2), out=space("d_qb", n, 2 * c, keys))
        d_qb_NC2K = d_qb_NC2K.view(n, c, 2, keys).mul_(self.prefix_NCG.unsqueeze(2))
        dk_NCK = torch.bmm(self.X_NCV, d_end_NKV.transpose(1, 2), out=space("dk", n, c, keys)).mul_(self.suffix_NCG)
        last_rows = self._take_last_rows(dk_NCK)
        d_last_NK = torch.mul(self.states_NKV, d_end_NKV, out=space("temporary", n, keys, values)).sum(2)
        d_last_NK.mul_(self.last_NG1[..., 0])
        d_last_NK += torch.mul(self.k_NCK, dk_NCK, out=space("temporary", n, c, keys)).sum(1)
        self._scores_backward(d_scores_NC2C, d_qb_NC2K, dk_NCK)
        diagonal_NC1 = d_scores_NC2C[:, :, 0].diagonal(dim1=1, dim2=2).unsqueeze(-1)
        self._finish(d_qb_NC2K, dk_NCK, dZ_NCV, d_last_NK, diagonal_NC1, last_rows, d_inputs)
        return d_states[0].view(self.batch, self.heads, keys, values)

    def _take_last_rows(self, tensor_NCK: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Zeroes every chunk's last row that holds a token; returns the rows, as views, with the values they had."""
        rows_LMCK = self._by_chunk(tensor_NCK)
        last = self.tokens - (self.L - 1) * CHUNK - 1
        taken = [(row, row.clone()) for row in (rows_LMCK[:-1, :, -1], rows_LMCK[-1, :, last])]
        for row, _ in taken:
            row.zero_()
        return taken

    def _scores_backward(self, d_scores_NC2C: Tensor, d_qb_NC2K: Tensor, dk_NCK: Tensor) -> None:
        """Adds what Q and A, off their diagonals, hand back to the gradients of their rows and columns."""
        self._restart_products()
        space, c, h = self.space, CHUNK, 1
        while h < c:
            n = self.N * c // (2 * h)
            rows, columns = self._pair(h)
            d_corner = (
                space("corner", self.N, c // (2 * h), h, 2, h).copy_(_corners(d_scores_NC2C, h)).view(n, 2 * h, h)
            )
            outer = torch.mul if h == 1 else torch.bmm
            d_rows = outer(d_corner, columns, out=space("d_pair", n, 2 * h, self.keys)).view(n, h, 2, self.keys)
            prefix = self.prefix_NCG.view(n, 2, h, 1, self.gates)[:, 1]
            d_qb_NC2K.view(n, 2, h, 2, self.keys)[:, 1].addcmul_(d_rows, prefix)
            d_columns = torch.bmm(d_corner.transpose(1, 2), rows, out=space("d_pair", n, h, self.keys))
            dk_NCK.view(n, 2, h, -1)[:, 0].addcmul_(d_columns, self.suffix_NCG.view(n, 2, h, -1)[:, 0])
            self._merge_products(h)
            h *= 2

    def _finish(
        self,
        d_qb_NC2K: Tensor,
        dk_NCK: Tensor,
        dZ_NCV: Tensor,
        d_last_NK: Tensor,
        diagonal_NC1: Tensor,
        last_rows: list[tuple[Tensor, Tensor]],
        d_inputs: tuple[Tensor, ...],
    ) -> None:
        """From the gradients of rows, columns, Z and Q's diagonal to those of the inputs."""
        space, n, c = self.space, self.N, CHUNK
        product = torch.mul(self.qb_NC2K, d_qb_NC2K, out=space("decayed", *d_qb_NC2K.shape))
        dG_NCK = torch.add(product[:, :, 0], product[:, :, 1], out=space("rows", n, c, self.keys))
        dG_NCK.addcmul_(self.k_NCK, dk_NCK, value=-1)
        dG_NCK[:, -1] += d_last_NK
        dG_NCG = dG_NCK if self.gates > 1 else torch.sum(dG_NCK, -1, keepdim=True, out=space("dG", n, c, 1))
        later_CC = torch.ones(c, c, device=space.device, dtype=space.dtype).triu()
        dg_NCG = torch.bmm(later_CC.expand(n, c, c), dG_NCG, out=space("dg", n, c, self.gates))
        # Only now what knows no decay: the diagonal of Q and each chunk's last row of k R.
        for row, value in last_rows:
            row.copy_(value)
        d_qb_NC2K[:, :, 0].addcmul_(diagonal_NC1, self.k_NCK)
        dk_NCK.addcmul_(diagonal_NC1, self.qb_NC2K[:, :, 0])
        d_key_rows = d_qb_NC2K[:, :, 1]
        d_beta_NC1 = torch.mul(self.k_NCK, d_key_rows, out=space("temporary", n, c, self.keys)).sum(-1, keepdim=True)
        d_beta_NC1 += torch.mul(self.v_NCV, dZ_NCV, out=space("temporary", n, c, self.values)).sum(-1, keepdim=True)
        dk_NCK.addcmul_(d_key_rows, self.beta_NC1)
        grads = (d_qb_NC2K[:, :, 0], dk_NCK, dZ_NCV.mul_(self.beta_NC1), dg_NCG, d_beta_NC1)
        for grad_NCD, target_BSHD in zip(grads, d_inputs, strict=True):
            store(self._by_head(grad_NCD), target_BSHD)
