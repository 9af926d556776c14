# B batch, S tokens (s of a slab), I channels (i of a block of them), N numbers of a channel's state
"""The selective scan of Mamba-1 (S6, arXiv 2312.00752).

Per token and channel, with a state of N numbers, a step dt > 0 and decay rates a < 0:

    S = exp(dt a) S + dt x b
    out = S . c

One token runs as plain torch operations; many run inside one opaque operator, `archc::selective_scan`. Decays differ by
channel, state and token at once, so that no product of matrices says what a chunk does: the scan goes token by token over a
slab of decays and writes that are made together, and one product with c reads all of its states.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

# Tokens between two states kept for the backward; what lies between is computed again.
SLAB = 32
# Numbers of a state that a CPU works on at a time, so that a slab of them stays in its caches.
CPU_BUDGET = 1 << 14


def selective_scan_rule(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Outputs (B, S, I) and the final state (B, I, N), both in dt's dtype, float32 or float64.

    x, dt: (B, S, I); a: (I, N); b, c: (B, S, N); state: (B, I, N), None for zeros. A step of 0 changes no state.
    """
    x, a, b, c = (tensor.to(dt.dtype) for tensor in (x, a, b, c))
    if state is None:
        # One zero seen as all of them: backward may keep it.
        state = x.new_zeros(()).expand(x.shape[0], *a.shape)
    if x.shape[1] == 1:
        return selective_scan_step(x, dt, a, b, c, state)
    out, final_state, _ = torch.ops.archc.selective_scan(x, dt, a, b, c, state.to(dt.dtype))
    return out, final_state


def selective_scan_step(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token, where the overhead of an operator is what counts."""
    dt_BI1 = dt[:, 0].unsqueeze(-1)
    final = state.to(dt.dtype) * (dt_BI1 * a).exp() + (dt_BI1 * x[:, 0].unsqueeze(-1)) * b
    return (final * c).sum(-1).unsqueeze(1), final


def selective_scan_flops(batch: int, seq: int, channels: int, state_size: int) -> int:
    """What is written and what is read, a multiply-add counting two."""
    return 4 * batch * seq * channels * state_size


@dataclass(eq=False)
class _Slab:
    """Some tokens of some channels, tokens first: x, dt (s, B, i), b, c (s, B, N), decays and states (s, B, i, N)."""

    x: Tensor
    dt: Tensor
    b: Tensor
    c: Tensor
    decay: Tensor
    states: Tensor


def _slab(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, start: Tensor) -> _Slab:
    x, dt, b, c = (tensor.transpose(0, 1) for tensor in (x, dt, b, c))
    decay = (dt.unsqueeze(-1) * a).exp_()
    states = (dt * x).unsqueeze(-1) * b.unsqueeze(-2)
    before = start
    for decay_now, state in zip(decay.unbind(), states.unbind(), strict=True):
        before = state.addcmul_(decay_now, before)
    return _Slab(x, dt, b, c, decay, states)


def _blocks(x: Tensor, state_size: int) -> Iterator[slice]:
    """Channels, which are independent, few enough for the caches of a CPU."""
    batch, _, channels = x.shape
    size = channels if x.device.type != "cpu" else max(1, CPU_BUDGET // (batch * state_size))
    for start in range(0, channels, size):
        yield slice(start, start + size)


def _slabs(tokens: int) -> list[slice]:
    return [slice(start, min(start + SLAB, tokens)) for start in range(0, tokens, SLAB)]


@torch.library.custom_op("archc::selective_scan", mutates_args=())
def selective_scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the final state and the states that slabs start from, kept for the backward."""
    out, final_state, starts = selective_scan_outputs(x, dt, a, b, c, state)
    starts_LBIN = starts.view(-1, *state.shape)
    with torch.autocast(x.device.type, enabled=False):
        for i in _blocks(x, a.shape[1]):
            running = state[:, i]
            for n, s in enumerate(_slabs(x.shape[1])):
                starts_LBIN[n, :, i] = running
                slab = _slab(x[:, s, i], dt[:, s, i], a[i], b[:, s], c[:, s], running)
                out[:, s, i] = torch.matmul(slab.states, slab.c.unsqueeze(-1)).squeeze(-1).transpose(0, 1)
                running = slab.states[-1]
            final_state[:, i] = running
    return out, final_state, starts


@selective_scan.register_fake
def selective_scan_outputs(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    # One flat dimension: as one of its own, the number of slabs would be 1 for a few tokens, which compilers specialise on.
    slabs = (x.shape[1] + SLAB - 1) // SLAB
    return x.new_empty(x.shape), x.new_empty(state.shape), x.new_empty((slabs * state.numel(),))


@torch.library.custom_op("archc::selective_scan_backward", mutates_args=())
def selective_scan_backward(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    starts: Tensor,
    d_out: Tensor,
    d_final_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the six arguments of the forward."""
    grads = selective_scan_gradients(x, dt, a, b, c, starts, d_out, d_final_state)
    d_x, d_dt, d_a, d_b, d_c, d_state = grads
    for total in (d_a, d_b, d_c):
        total.zero_()
    starts_LBIN = starts.view(-1, *d_final_state.shape)
    with torch.autocast(x.device.type, enabled=False):
        for i in _blocks(x, a.shape[1]):
            running = d_final_state[:, i]
            for n, s in reversed(list(enumerate(_slabs(x.shape[1])))):
                start = starts_LBIN[n, :, i]
                slab = _slab(x[:, s, i], dt[:, s, i], a[i], b[:, s], c[:, s], start)
                *parts, running = _slab_backward(slab, start, a[i], d_out[:, s, i].transpose(0, 1), running)
                d_x[:, s, i], d_dt[:, s, i] = (part.transpose(0, 1) for part in parts[:2])
                d_a[i] += parts[2]
                d_b[:, s] += parts[3].transpose(0, 1)
                d_c[:, s] += parts[4].transpose(0, 1)
            d_state[:, i] = running
    return grads


def _slab_backward(
    slab: _Slab, start: Tensor, a: Tensor, d_out: Tensor, d_end: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, dt, a, b, c and the state that the slab starts from."""
    d_states = d_out.unsqueeze(-1) * slab.c.unsqueeze(-2)
    after = d_end
    decays, each = slab.decay.unbind(), d_states.unbind()
    for t in reversed(range(len(each))):
        after = each[t].add_(after).mul(decays[t])
    before = torch.cat((start.unsqueeze(0), slab.states[:-1]))
    d_exponent = before.mul_(d_states).mul_(slab.decay)
    d_written = torch.matmul(d_states, slab.b.unsqueeze(-1)).squeeze(-1)
    return (
        d_written * slab.dt,
        d_written * slab.x + (d_exponent * a).sum(-1),
        (d_exponent * slab.dt.unsqueeze(-1)).sum((0, 1)),
        torch.matmul((slab.dt * slab.x).unsqueeze(-2), d_states).squeeze(-2),
        torch.matmul(d_out.unsqueeze(-2), slab.states).squeeze(-2),
        after,
    )


@selective_scan_backward.register_fake
def selective_scan_gradients(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    starts: Tensor,
    d_out: Tensor,
    d_final_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_x, d_dt, d_a, d_b, d_c, d_state = (tensor.new_empty(tensor.shape) for tensor in (x, dt, a, b, c, d_final_state))
    return d_x, d_dt, d_a, d_b, d_c, d_state


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], output[2])


def _differentiate(ctx: Any, d_out: Tensor, d_final_state: Tensor, _: Tensor) -> tuple:
    return torch.ops.archc.selective_scan_backward(*ctx.saved_tensors, d_out, d_final_state)


selective_scan.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.archc.selective_scan)
def _forward_flops(
    x_shape: Sequence[int], dt_shape: Sequence[int], a_shape: Sequence[int], *_: object, **__: object
) -> int:
    batch, seq, channels = x_shape
    return selective_scan_flops(batch, seq, channels, a_shape[1])


@register_flop_formula(torch.ops.archc.selective_scan_backward)
def _backward_flops(
    x_shape: Sequence[int], dt_shape: Sequence[int], a_shape: Sequence[int], *_: object, **__: object
) -> int:
    return 2 * _forward_flops(x_shape, dt_shape, a_shape)
