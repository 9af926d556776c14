# B batch, S tokens, H heads of values, I heads of keys (H is a multiple), R = H / I, K key channels, V value channels
# C rows of a chunk, L chunks of a slab
"""Linear attention with a decay a head: lightning attention (arXiv 2401.04658), Mamba-2 (arXiv 2405.21060).

Per token and head, with a state S (K, V):

    S = exp(log_decay) S + k v^T
    out = S^T (q scale)

One token runs as plain torch operations; many run in chunks inside one opaque operator, `archc::gated_attention`. Inside a
chunk let G_i be the sum of the log decays up to row i and S the state it starts from. Then

    A_ij = e^(G_i - G_j) q_i . k_j  for j <= i
    o_i = e^(G_i) q_i S + A_i v
    S' = e^(G_last) S + sum_j e^(G_last - G_j) k_j v_j

and q . k is computed once for all heads that share a key. Sums and differences of decays are float64: they are few, one a
token and head, and their differences keep their digits however strong the decay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

CHUNK = 64
# Tokens between two states kept for the backward; what lies between is computed again, slab by slab.
SLAB = 8 * CHUNK


def gated_attention_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs (B, S, H, V) in v's dtype and the final state (B, H, K, V) in float32 (float64 for float64 inputs).

    q, k: (B, S, I, K); v: (B, S, H, V); log_decay, at most 0: (B, S, H); state: (B, H, K, V), None for zeros.
    """
    if state is None:
        state = v.new_zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3], dtype=_arithmetic_dtype(v))
    if q.shape[1] == 1:
        return gated_attention_step(q, k, v, log_decay, state, scale=scale)
    out, final_state, _ = torch.ops.archc.gated_attention(q, k, v, log_decay, state, scale)
    return out, final_state


def gated_attention_step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """One token, where the overhead of an operator is what counts."""
    if torch.is_autocast_enabled(v.device.type):
        with torch.autocast(v.device.type, enabled=False):
            return gated_attention_step(q, k, v, log_decay, state, scale=scale)
    dtype, group = _arithmetic_dtype(v), v.shape[2] // q.shape[2]
    q_BIK, k_BIK, v_BHV, decay_BH = (x[:, 0].to(dtype) for x in (q, k, v, log_decay))
    if group > 1:
        q_BIK, k_BIK = q_BIK.repeat_interleave(group, 1), k_BIK.repeat_interleave(group, 1)
    kept = state.to(dtype) * decay_BH.exp()[..., None, None]
    final = torch.addcmul(kept, k_BIK.unsqueeze(-1), v_BHV.unsqueeze(-2))
    return torch.matmul((q_BIK * scale).unsqueeze(-2), final).transpose(1, 2).to(v.dtype), final


def gated_attention_flops(
    batch: int, seq: int, heads: int, key_heads: int, key_dim: int, value_dim: int, pairs: str = "dense"
) -> int:
    """Matmul operations of the chunked form, forward, a multiply-add counting two.

    pairs="dense" pads every chunk to 64 rows and takes full squares; "needed" counts the tokens there are and j <= i.
    """
    total = 0
    for start in range(0, seq, CHUNK):
        rows = CHUNK if pairs == "dense" else min(CHUNK, seq - start)
        below = CHUNK * CHUNK if pairs == "dense" else rows * (rows + 1) // 2
        total += below * (key_heads * key_dim + heads * value_dim) + 2 * rows * heads * key_dim * value_dim
    return 2 * batch * total


def _arithmetic_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@dataclass(eq=False)
class _Slab:
    """Up to eight chunks: (L, B, heads, C, width) each, and the decays between rows, to the end and from the start."""

    q: Tensor
    k: Tensor
    v: Tensor
    between: Tensor
    """(L, B, H, C, C), e^(G_i - G_j) below and on the diagonal, 0 above."""
    start: Tensor
    """(L, B, H, C, 1), e^(G_i)."""
    end: Tensor
    """(L, B, H, C, 1), e^(G_last - G_j)."""

    @property
    def last(self) -> Tensor:
        """(L, B, H, 1, 1), the decay of a whole chunk."""
        return self.start[..., -1:, :]

    @property
    def group(self) -> int:
        """Heads of values a key head."""
        return self.v.shape[2] // self.k.shape[2]

    def spread(self, x: Tensor) -> Tensor:
        """A value of the key heads for every head of values."""
        return x if self.group == 1 else x.repeat_interleave(self.group, 2)

    def gathered(self, x: Tensor) -> Tensor:
        """The sum over the heads of values that share a key head."""
        return x if self.group == 1 else x.unflatten(2, (-1, self.group)).sum(3)

    def scores(self) -> Tensor:
        """A (L, B, H, C, C)."""
        return self.spread(torch.matmul(self.q, self.k.transpose(-1, -2))) * self.between

    def states(self, state: Tensor) -> Tensor:
        """The states before each chunk and after the last, (L + 1, B, H, K, V)."""
        written = torch.matmul((self.spread(self.k) * self.end).transpose(-1, -2), self.v)
        found = [state]
        for last, new in zip(self.last, written, strict=True):
            found.append(torch.addcmul(new, found[-1], last))
        return torch.stack(found)


def _chunks(x_BSHD: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, S, H, D) to (L, B, H, C, D); rows behind the last token are zeros, which change no state."""
    tokens = x_BSHD.shape[1]
    rows = min(CHUNK, tokens)
    missing = -tokens % rows
    padded = torch.nn.functional.pad(x_BSHD, (0, 0, 0, 0, 0, missing)) if missing else x_BSHD
    return padded.unflatten(1, (-1, rows)).permute(1, 0, 3, 2, 4).to(dtype).contiguous()


def _tokens(x_LBHCD: Tensor, tokens: int) -> Tensor:
    """The way back."""
    return x_LBHCD.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :tokens]


def _slab(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> _Slab:
    dtype = _arithmetic_dtype(v)
    G = _chunks(log_decay.unsqueeze(-1), torch.float64).cumsum(-2)
    rows = G.shape[-2]
    above = torch.ones(rows, rows, dtype=torch.bool, device=v.device).triu(1)
    between = (G - G.transpose(-1, -2)).to(dtype).masked_fill_(above, -torch.inf).exp_()
    q, k, v = (_chunks(x, dtype) for x in (q, k, v))
    return _Slab(q, k, v, between, G.to(dtype).exp(), (G[..., -1:, :] - G).to(dtype).exp())


def _slabs(tokens: int) -> list[slice]:
    return [slice(start, min(start + SLAB, tokens)) for start in range(0, tokens, SLAB)]


@torch.library.custom_op("archc::gated_attention", mutates_args=())
def gated_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the final state and the states that slabs start from, kept for the backward."""
    out, final_state, starts = gated_attention_outputs(q, k, v, log_decay, state, scale)
    starts_NBHKV = starts.view(-1, *state.shape)
    with torch.autocast(v.device.type, enabled=False):
        running = state.to(final_state.dtype)
        for n, s in enumerate(_slabs(v.shape[1])):
            starts_NBHKV[n] = running
            slab = _slab(q[:, s], k[:, s], v[:, s], log_decay[:, s])
            states = slab.states(running)
            y = torch.matmul(slab.spread(slab.q), states[:-1]).mul_(slab.start)
            y += torch.matmul(slab.scores(), slab.v)
            out[:, s] = _tokens(y.mul_(scale), s.stop - s.start)
            running = states[-1]
        final_state.copy_(running)
    return out, final_state, starts


@gated_attention.register_fake
def gated_attention_outputs(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _arithmetic_dtype(v)
    # One flat dimension: as one of its own, the number of slabs would be 1 up to 512 tokens, which compilers specialise on.
    slabs = (v.shape[1] + SLAB - 1) // SLAB
    return (
        v.new_empty(v.shape),
        v.new_empty(state.shape, dtype=dtype),
        v.new_empty((slabs * state.numel(),), dtype=dtype),
    )


@torch.library.custom_op("archc::gated_attention_backward", mutates_args=())
def gated_attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor,
    starts: Tensor,
    d_out: Tensor,
    d_final_state: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the first five arguments, in their shapes and dtypes."""
    grads = gated_attention_gradients(q, k, v, log_decay, state, starts, d_out, d_final_state, scale)
    d_q, d_k, d_v, d_log_decay, d_state = grads
    starts_NBHKV = starts.view(-1, *state.shape)
    with torch.autocast(v.device.type, enabled=False):
        running = d_final_state.to(starts.dtype)
        for n, s in reversed(list(enumerate(_slabs(v.shape[1])))):
            slab, tokens = _slab(q[:, s], k[:, s], v[:, s], log_decay[:, s]), s.stop - s.start
            d_rows = _chunks(d_out[:, s], starts.dtype).mul_(scale)
            *parts, running = _slab_backward(slab, starts_NBHKV[n], d_rows, running, tokens)
            for target, part in zip((d_q, d_k, d_v), parts[:3], strict=True):
                target[:, s] = _tokens(part, tokens)
            d_log_decay[:, s] = _tokens(parts[3], tokens).squeeze(-1)
        d_state.copy_(running)
    return grads


def _slab_backward(
    slab: _Slab, state: Tensor, d_rows: Tensor, d_state: Tensor, tokens: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, log decays and the state that the slab starts from; ``d_rows`` are those of its rows.

    A decay enters as e^(G_i - G_j) between rows, as e^(G_i) from the start and e^(G_last - G_j) to the end, so that its
    gradient is a sum of what these weigh. Pairs without a decay between them are left out: they cancel, and their rounding
    would drown the tiny gradient of a strong decay.
    """
    states = slab.states(state)
    q, k = slab.spread(slab.q), slab.spread(slab.k)
    d_read = d_rows * slab.start
    d_before = torch.matmul(q.transpose(-1, -2), d_read)
    d_after = [d_state]
    for last, new in zip(reversed(slab.last), reversed(d_before), strict=True):
        d_after.append(torch.addcmul(new, d_after[-1], last))
    d_start = d_after.pop()
    d_end = torch.stack(d_after[::-1])

    d_weights = torch.matmul(d_rows, slab.v.transpose(-1, -2)) * slab.between
    d_shared = slab.gathered(d_weights)
    read = torch.matmul(d_read, states[:-1].transpose(-1, -2))
    d_q = torch.matmul(d_shared, slab.k) + slab.gathered(read)
    d_written = torch.matmul(slab.v, d_end.transpose(-1, -2)) * slab.end
    d_k = torch.matmul(d_shared.transpose(-1, -2), slab.q) + slab.gathered(d_written)
    scores = slab.scores()
    d_v = torch.matmul(scores.transpose(-1, -2), d_rows) + torch.matmul(k, d_end) * slab.end

    pairs = (scores * torch.matmul(d_rows, slab.v.transpose(-1, -2))).tril(-1)
    kept = (d_written * k).sum(-1, keepdim=True)
    last_row = (tokens - 1) % kept.shape[-2]
    kept[:-1, ..., -1, :] = 0
    kept[-1, ..., last_row, :] = 0
    d_G = pairs.sum(-1, keepdim=True) - pairs.sum(-2).unsqueeze(-1) + (read * q).sum(-1, keepdim=True) - kept
    whole = (states[:-1] * d_end).sum((-2, -1), keepdim=True) * slab.last + kept.sum(-2, keepdim=True)
    d_G[..., -1:, :] += whole
    d_log_decay = d_G.flip(-2).cumsum(-2).flip(-2)
    return d_q, d_k, d_v, d_log_decay, d_start


@gated_attention_backward.register_fake
def gated_attention_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor,
    starts: Tensor,
    d_out: Tensor,
    d_final_state: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_q, d_k, d_v, d_log_decay, d_state = (x.new_empty(x.shape) for x in (q, k, v, log_decay, state))
    return d_q, d_k, d_v, d_log_decay, d_state


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, output[2])


def _differentiate(ctx: Any, d_out: Tensor, d_final_state: Tensor, _: Tensor) -> tuple:
    grads = torch.ops.archc.gated_attention_backward(*ctx.saved_tensors, d_out, d_final_state, ctx.scale)
    return *grads, None


gated_attention.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.archc.gated_attention)
def _forward_flops(
    q_shape: Sequence[int], k_shape: Sequence[int], v_shape: Sequence[int], *_: object, **__: object
) -> int:
    batch, seq, key_heads, keys = q_shape
    return gated_attention_flops(batch, seq, v_shape[2], key_heads, keys, v_shape[3])


@register_flop_formula(torch.ops.archc.gated_attention_backward)
def _backward_flops(
    q_shape: Sequence[int], k_shape: Sequence[int], v_shape: Sequence[int], *_: object, **__: object
) -> int:
    return 2 * _forward_flops(q_shape, k_shape, v_shape)
