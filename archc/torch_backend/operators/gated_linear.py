# B batch, S tokens, G groups of heads, R heads of a group, H = G * R heads, K key channels, V value channels
# L chunks of a slab, C rows of a chunk
"""Linear attention with a decay a head: the state space duality of Mamba-2 (arXiv 2405.21060).

Per token and head, with a state S (K, V):

    S = exp(log_decay) S + k v^T
    out = q S

One token runs as plain torch operations; many run in chunks inside one opaque operator, `archc::gated_linear`, so that
tracers see a single node whatever the length. `gated_linear_slab` has the algebra.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from archc.torch_backend.operators.gated_linear_slab import CHUNK, Slab

# Tokens between two states kept for the backward; what lies between is computed again, slab by slab.
SLAB = 8 * CHUNK
# Entries of one slab's decays between rows, its largest buffers: 64 MiB in float32, on a CPU 8 MiB.
BUDGET, CPU_BUDGET = 1 << 24, 1 << 21


def gated_linear(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Outputs (B, S, H, V) in v's dtype and the final state (B, H, K, V) in float32 (float64 for float64 inputs).

    q, k: (B, S, G, K), where a group serves the next H / G heads; v: (B, S, H, V); log_decay, at most 0: (B, S, H);
    state: (B, H, K, V), None for zeros.
    """
    if state is None:
        dtype = _arithmetic_dtype(v)
        state = torch.zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3], device=v.device, dtype=dtype)
    if q.shape[1] == 1:
        return _one_token(q, k, v, log_decay, state)
    out, final_state, _ = torch.ops.archc.gated_linear(q, k, v, log_decay, state)
    return out, final_state


def _one_token(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast(v.device.type, enabled=False):
        dtype = _arithmetic_dtype(v)
        heads = v.shape[2] // q.shape[2]
        q_BHK, k_BHK = (x[:, 0].to(dtype).repeat_interleave(heads, 1) for x in (q, k))
        decay_BH11 = log_decay[:, 0].to(dtype).exp()[..., None, None]
        state_BHKV = state.to(dtype) * decay_BH11
        state_BHKV = torch.addcmul(state_BHKV, k_BHK.unsqueeze(-1), v[:, 0].to(dtype).unsqueeze(-2))
        out_BH1V = torch.matmul(q_BHK.unsqueeze(-2), state_BHKV)
        return out_BH1V.transpose(1, 2).to(v.dtype), state_BHKV


def gated_linear_flops(batch: int, seq: int, groups: int, heads: int, key_dim: int, value_dim: int) -> int:
    """Matmul operations of the chunked rule, forward, a multiply-add counting two: whole chunks of 64, whole squares."""
    chunks, square = -(-seq // CHUNK), CHUNK * CHUNK
    return (
        batch * chunks * (2 * square * (groups * key_dim + heads * value_dim) + 4 * CHUNK * heads * key_dim * value_dim)
    )


def _arithmetic_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _rows(v: Tensor) -> Iterator[slice]:
    """Slices of the batch whose slabs stay within the budget; a row of the batch is never cut."""
    batch, tokens, heads = v.shape[:3]
    budget = CPU_BUDGET if v.device.type == "cpu" else BUDGET
    together = max(1, budget // (heads * min(tokens, SLAB) * CHUNK))
    for start in range(0, batch, together):
        yield slice(start, start + together)


def _slabs(tokens: int) -> list[slice]:
    return [slice(start, min(start + SLAB, tokens)) for start in range(0, tokens, SLAB)]


@torch.library.custom_op("archc::gated_linear", mutates_args=())
def _gated_linear(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k: (B, S, G, K); v: (B, S, H, V); log_decay: (B, S, H); state: (B, H, K, V).

    Returns the outputs, the final state and the states the slabs start from, kept for the backward.
    """
    out, final_state, starts = _outputs(q, k, v, log_decay, state)
    with torch.autocast(v.device.type, enabled=False):
        starts_NBHKV = starts.view(-1, *state.shape)
        for b in _rows(v):
            running = state[b]
            for n, s in enumerate(_slabs(v.shape[1])):
                starts_NBHKV[n, b] = running
                slab = Slab(q[b, s], k[b, s], v[b, s], log_decay[b, s], starts_NBHKV[n, b])
                out[b, s] = slab.output()
                running = slab.final_state()
            final_state[b] = running
    return out, final_state, starts


@_gated_linear.register_fake
def _outputs(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _arithmetic_dtype(v)
    # One flat dimension: as a dimension of its own, the number of slabs would be 1 up to 512 tokens, a value compilers
    # specialise on.
    slabs = (v.shape[1] + SLAB - 1) // SLAB
    return (
        v.new_empty(v.shape),
        v.new_empty(state.shape, dtype=dtype),
        v.new_empty((slabs * state.numel(),), dtype=dtype),
    )


@torch.library.custom_op("archc::gated_linear_backward", mutates_args=())
def _gated_linear_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor,
    starts: Tensor,
    d_out: Tensor,
    d_final_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the first five arguments, in their shapes and dtypes."""
    grads = _gradients(q, k, v, log_decay, state, starts, d_out, d_final_state)
    d_q, d_k, d_v, d_log_decay, d_state = grads
    with torch.autocast(v.device.type, enabled=False):
        starts_NBHKV = starts.view(-1, *state.shape)
        for b in _rows(v):
            running = d_final_state[b]
            for n, s in reversed(list(enumerate(_slabs(v.shape[1])))):
                slab = Slab(q[b, s], k[b, s], v[b, s], log_decay[b, s], starts_NBHKV[n, b])
                d_q[b, s], d_k[b, s], d_v[b, s], d_log_decay[b, s], running = slab.backward(d_out[b, s], running)
            d_state[b] = running
    return grads


@_gated_linear_backward.register_fake
def _gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor,
    starts: Tensor,
    d_out: Tensor,
    d_final_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_q, d_k, d_v, d_log_decay, d_state = (tensor.new_empty(tensor.shape) for tensor in (q, k, v, log_decay, state))
    return d_q, d_k, d_v, d_log_decay, d_state


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[2])


def _differentiate(ctx: Any, d_out: Tensor, d_final_state: Tensor, _: Tensor) -> tuple:
    return torch.ops.archc.gated_linear_backward(*ctx.saved_tensors, d_out, d_final_state)


_gated_linear.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.archc.gated_linear)
def _forward_flops(
    q_shape: Sequence[int], k_shape: Sequence[int], v_shape: Sequence[int], *_: object, **__: object
) -> int:
    batch, seq, groups, keys = q_shape
    return gated_linear_flops(batch, seq, groups, v_shape[2], keys, v_shape[3])


@register_flop_formula(torch.ops.archc.gated_linear_backward)
def _backward_flops(
    q_shape: Sequence[int], k_shape: Sequence[int], v_shape: Sequence[int], *_: object, **__: object
) -> int:
    return 2 * _forward_flops(q_shape, k_shape, v_shape)
