# B batch, S tokens, H heads, K key channels, V value channels, G decay channels (K, or 1 for a decay per head)
# N batch * heads; in starts_NBHKV slabs
"""The gated delta rule: Kimi Delta Attention (arXiv 2510.26692) and Gated DeltaNet (arXiv 2412.06464).

Per token and head, with a state S (K, V):

    S = exp(log_decay)[:, None] * S
    S = S + k (beta (v - S^T k))^T
    out = S^T (q * scale)

One token runs as plain torch operations; many run in chunks inside one opaque operator, `archc::gated_delta`, so that
tracers see a single node whatever the length. `gated_delta_slab` has the algebra.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from archc.torch_backend.operators.gated_delta_slab import CHUNK, Slab, Workspace

# Tokens between two states kept for the backward; what lies between is computed again, slab by slab.
SLAB = 8 * CHUNK
# Channels times chunks a slab may hold on a CPU: its dozen or so buffers, a megabyte each, then stay in the caches.
CPU_BUDGET = 64 * 64


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor | None, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs (B, S, H, V) in v's dtype and the final state (B, H, K, V) in float32 (float64 for float64 inputs).

    q, k: (B, S, H, K); v: (B, S, H, V); log_decay, at most 0: (B, S, H, K) for a decay per key channel or (B, S, H) per
    head; beta: (B, S, H); state: (B, H, K, V), None for zeros.
    """
    if q.shape[1] == 1:
        return gated_delta_recurrent(q, k, v, log_decay, beta, state, scale=scale)
    if log_decay.dim() == 3:
        log_decay = log_decay.unsqueeze(-1)
    if state is None:
        state = _no_state(q, v)
    if v.is_cuda:
        from archc.torch_backend.operators import fla

        if fla.usable(v, log_decay):
            return fla.gated_delta_rule(q, k, v, log_decay, beta, state, scale=scale)
    out, final_state, _ = torch.ops.archc.gated_delta(q, k, v, log_decay, beta, state, scale)
    return out, final_state


def gated_delta_recurrent(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor | None, *, scale: float
) -> tuple[Tensor, Tensor]:
    """The same function, token by token: for one or a few tokens, where the overhead of an operator is what counts."""
    if torch.is_autocast_enabled(v.device.type):
        with torch.autocast(v.device.type, enabled=False):
            return gated_delta_recurrent(q, k, v, log_decay, beta, state, scale=scale)
    dtype, shape, out_dtype = _arithmetic_dtype(v), v.shape, v.dtype
    items, keys, tokens = shape[0] * shape[2], q.shape[3], shape[1]
    if state is None:
        state = _no_state(q, v)
    state_NKV = state.to(dtype).reshape(items, keys, shape[3])
    inputs = [tensor.to(dtype) for tensor in (q, k, v, log_decay, beta)]
    inputs[0], inputs[3] = inputs[0] * scale, inputs[3].exp()
    if tokens == 1:
        out_N1V, state_NKV = _step(state_NKV, *(tensor.reshape(items, 1, -1) for tensor in inputs))
        return out_N1V.view(shape).to(out_dtype), state_NKV.view(state.shape)
    outs = []
    for t in range(tokens):
        out_N1V, state_NKV = _step(state_NKV, *(tensor[:, t].reshape(items, 1, -1) for tensor in inputs))
        outs.append(out_N1V)
    out_BHSV = torch.cat(outs, 1).unflatten(0, (shape[0], shape[2]))
    return out_BHSV.transpose(1, 2).to(out_dtype), state_NKV.view(state.shape)


def _step(
    state_NKV: Tensor, q_N1K: Tensor, k_N1K: Tensor, v_N1V: Tensor, decay_N1G: Tensor, beta_N11: Tensor
) -> tuple[Tensor, Tensor]:
    state_NKV = state_NKV * decay_N1G.transpose(1, 2)
    written_N1V = torch.baddbmm(v_N1V, k_N1K, state_NKV, alpha=-1) * beta_N11
    state_NKV = torch.addcmul(state_NKV, k_N1K.transpose(1, 2), written_N1V)
    return torch.bmm(q_N1K, state_NKV), state_NKV


def gated_delta_flops(batch: int, seq: int, heads: int, key_dim: int, value_dim: int, pairs: str = "dense") -> int:
    """Matmul operations of the chunked rule, forward, a multiply-add counting two.

    The count is that of the papers' form (u and w by forward substitution), so that implementations compare on one
    scale. pairs="dense" pads every chunk to 64 rows and takes full squares; "needed" counts the tokens there are and
    the pairs (i, j) with j <= i (scores, outputs) or j < i (the keys' scores, the substitution).
    """
    total = 0
    for start in range(0, seq, CHUNK):
        if pairs == "dense":
            rows, below, upto = CHUNK, CHUNK * CHUNK, CHUNK * CHUNK
        elif pairs == "needed":
            rows = min(CHUNK, seq - start)
            below, upto = rows * (rows - 1) // 2, rows * (rows + 1) // 2
        else:
            raise ValueError(f"pairs is {pairs!r}, not 'needed' or 'dense'")
        scores = below * key_dim + upto * key_dim
        substitution = below * (key_dim + value_dim)
        total += 2 * (scores + substitution + 3 * rows * key_dim * value_dim + upto * value_dim)
    return batch * heads * total


def _arithmetic_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _no_state(q: Tensor, v: Tensor) -> Tensor:
    """The state before the first token: one zero seen as all of them, since backward keeps it."""
    zero = v.new_zeros((), dtype=_arithmetic_dtype(v))
    return zero.expand(v.shape[0], v.shape[2], q.shape[3], v.shape[3])


def _groups(v: Tensor, keys: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the batch and the heads, which are independent, small enough for the caches of a CPU."""
    batch, tokens, heads, values = v.shape
    if v.device.type != "cpu":
        yield slice(0, batch), slice(0, heads)
        return
    together = max(1, CPU_BUDGET // (max(keys, values) * -(-min(tokens, SLAB) // CHUNK)))
    batches, group = max(1, together // heads), min(heads, together)
    for b in range(0, batch, batches):
        for h in range(0, heads, group):
            yield slice(b, b + batches), slice(h, h + group)


def _slabs(tokens: int) -> list[slice]:
    return [slice(start, min(start + SLAB, tokens)) for start in range(0, tokens, SLAB)]


@torch.library.custom_op("archc::gated_delta", mutates_args=())
def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k: (B, S, H, K); v: (B, S, H, V); log_decay: (B, S, H, G); beta: (B, S, H); state: (B, H, K, V).

    Returns the outputs, the final state and the states the slabs start from, kept for the backward.
    """
    out, final_state, starts = gated_delta_outputs(q, k, v, log_decay, beta, state, scale)
    with torch.autocast(v.device.type, enabled=False):
        space, starts_NBHKV = Workspace(v.device, final_state.dtype), starts.view(-1, *state.shape)
        for b, h in _groups(v, q.shape[3]):
            running = state[b, h]
            for n, s in enumerate(_slabs(v.shape[1])):
                starts_NBHKV[n, b, h] = running
                slab = Slab(space, q[b, s, h], k[b, s, h], v[b, s, h], log_decay[b, s, h], beta[b, s, h].unsqueeze(-1))
                running = slab.solve(starts_NBHKV[n, b, h])
                slab.output(out[b, s, h], scale)
            final_state[b, h] = running
    return out, final_state, starts


@gated_delta.register_fake
def gated_delta_outputs(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _arithmetic_dtype(v)
    # One flat dimension: as a dimension of its own, the number of slabs would be 1 up to 512 tokens, a value compilers
    # specialise on.
    slabs = (v.shape[1] + SLAB - 1) // SLAB
    return (
        v.new_empty(v.shape),
        v.new_empty(state.shape, dtype=dtype),
        v.new_empty((slabs * state.numel(),), dtype=dtype),
    )


@torch.library.custom_op("archc::gated_delta_backward", mutates_args=())
def gated_delta_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    starts: Tensor,
    d_out: Tensor,
    d_final_state: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the first six arguments, in their shapes and dtypes."""
    d_q, d_k, d_v, d_log_decay, d_beta, d_state = grads = gated_delta_gradients(
        q, k, v, log_decay, beta, state, starts, d_out, d_final_state, scale
    )
    with torch.autocast(v.device.type, enabled=False):
        space, starts_NBHKV = Workspace(v.device, starts.dtype), starts.view(-1, *state.shape)
        for b, h in _groups(v, q.shape[3]):
            running = d_final_state[b, h]
            for n, s in reversed(list(enumerate(_slabs(v.shape[1])))):
                slab = Slab(space, q[b, s, h], k[b, s, h], v[b, s, h], log_decay[b, s, h], beta[b, s, h].unsqueeze(-1))
                slab.solve(starts_NBHKV[n, b, h])
                d_beta_BSH1 = d_beta[b, s, h].unsqueeze(-1)
                d_inputs = (d_q[b, s, h], d_k[b, s, h], d_v[b, s, h], d_log_decay[b, s, h], d_beta_BSH1)
                running = slab.backward(d_out[b, s, h], running, scale, d_inputs)
            d_state[b, h] = running
    return grads


@gated_delta_backward.register_fake
def gated_delta_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    starts: Tensor,
    d_out: Tensor,
    d_final_state: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_q, d_k, d_v, d_log_decay, d_beta, d_state = (
        tensor.new_empty(tensor.shape) for tensor in (q, k, v, log_decay, beta, state)
    )
    return d_q, d_k, d_v, d_log_decay, d_beta, d_state


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, output[2])


def _differentiate(ctx: Any, d_out: Tensor, d_final_state: Tensor, _: Tensor) -> tuple:
    grads = torch.ops.archc.gated_delta_backward(*ctx.saved_tensors, d_out, d_final_state, ctx.scale)
    return *grads, None


gated_delta.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.archc.gated_delta)
def _forward_flops(
    q_shape: Sequence[int], k_shape: Sequence[int], v_shape: Sequence[int], *_: object, **__: object
) -> int:
    batch, seq, heads, keys = q_shape
    return gated_delta_flops(batch, seq, heads, keys, v_shape[3])


@register_flop_formula(torch.ops.archc.gated_delta_backward)
def _backward_flops(
    q_shape: Sequence[int], k_shape: Sequence[int], v_shape: Sequence[int], *_: object, **__: object
) -> int:
    return 2 * _forward_flops(q_shape, k_shape, v_shape)
