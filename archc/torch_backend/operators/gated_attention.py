# B batch, S tokens, H heads of values, I heads of keys (H is a multiple), R = H / I, K key channels, V value channels
"""Linear attention with a decay a head or a key channel: lightning attention (arXiv 2401.04658), Mamba-2 (arXiv 2405.21060),
RetNet (arXiv 2307.08621), GLA (arXiv 2312.06635).

Per token and head, with a state S (K, V):

    S = exp(log_decay) S + k v^T
    out = S^T (q scale)

One token runs as plain torch operations; many run in chunks inside one opaque operator, `archc::gated_attention`, so that
tracers see a single node whatever the length. `gated_attention_slab` has the algebra, and
`channel_decay_slab` that of a decay a channel.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from archc.torch_backend.operators.channel_decay_slab import ChannelSlab
from archc.torch_backend.operators.gated_attention_slab import CHUNK, Slab

# Tokens between two states kept for the backward; what lies between is computed again, slab by slab.
SLAB = 8 * CHUNK
# Entries of one slab's decays between rows, its largest buffers: 64 MiB in float32, on a CPU 8 MiB.
BUDGET, CPU_BUDGET = 1 << 24, 1 << 21


def gated_attention_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs (B, S, H, V) in v's dtype and the final state (B, H, K, V) in float32 (float64 for float64 inputs).

    q, k: (B, S, I, K); v: (B, S, H, V); log_decay, at most 0: (B, S, H), or (B, S, H, K) for a decay a key channel, which wants
    I = H; state: (B, H, K, V), None for zeros.
    """
    if state is None:
        # One zero seen as all of them: backward keeps it.
        zero = v.new_zeros((), dtype=_arithmetic_dtype(v))
        state = zero.expand(v.shape[0], v.shape[2], q.shape[3], v.shape[3])
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
    decay = decay_BH.exp().unsqueeze(-1)
    kept = state.to(dtype) * (decay if log_decay.dim() == 4 else decay.unsqueeze(-1))
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


def _form(log_decay: Tensor) -> type[Slab] | type[ChannelSlab]:
    return ChannelSlab if log_decay.dim() == 4 else Slab


def _rows(v: Tensor, log_decay: Tensor) -> Iterator[slice]:
    """Slices of the batch whose slabs stay within the budget; a row of the batch is never cut."""
    batch, tokens, heads = v.shape[:3]
    budget = CPU_BUDGET if v.device.type == "cpu" else BUDGET
    widest = max(min(tokens, CHUNK), log_decay.shape[3] if log_decay.dim() == 4 else 1)
    together = max(1, budget // (heads * min(tokens, SLAB) * widest))
    for start in range(0, batch, together):
        yield slice(start, start + together)


def _slabs(tokens: int) -> list[slice]:
    return [slice(start, min(start + SLAB, tokens)) for start in range(0, tokens, SLAB)]


@torch.library.custom_op("archc::gated_attention", mutates_args=())
def gated_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the final state and the states that slabs start from, kept for the backward."""
    out, final_state, starts = gated_attention_outputs(q, k, v, log_decay, state, scale)
    starts_NBHKV, form = starts.view(-1, *state.shape), _form(log_decay)
    with torch.autocast(v.device.type, enabled=False):
        for b in _rows(v, log_decay):
            running = state[b]
            for n, s in enumerate(_slabs(v.shape[1])):
                starts_NBHKV[n, b] = running
                slab = form(q[b, s], k[b, s], v[b, s], log_decay[b, s], starts_NBHKV[n, b], scale=scale)
                out[b, s] = slab.output()
                running = slab.final_state()
            final_state[b] = running
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
    starts_NBHKV, form = starts.view(-1, *state.shape), _form(log_decay)
    with torch.autocast(v.device.type, enabled=False):
        for b in _rows(v, log_decay):
            running = d_final_state[b]
            for n, s in reversed(list(enumerate(_slabs(v.shape[1])))):
                slab = form(q[b, s], k[b, s], v[b, s], log_decay[b, s], starts_NBHKV[n, b], scale=scale)
                d_q[b, s], d_k[b, s], d_v[b, s], d_log_decay[b, s], running = slab.backward(d_out[b, s], running)
            d_state[b] = running
    return grads


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
