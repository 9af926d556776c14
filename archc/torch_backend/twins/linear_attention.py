"""Readable linear mixers, the judges of the fast ones."""

# Shape suffixes: B batch, P past columns, S new tokens, H heads, K key width (in a convolution: kernel), V value width,
# C channels.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from archc.torch_backend.twins.gated_delta import chunked_counted


def delta_twin(pairs: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rule in matmuls, in float64: chunks that count ``pairs`` for many tokens, the recurrence for one."""

    def rule(
        q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor | None, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        if state is None:
            # The first chunk's products with an empty state are part of the form, so they are computed and counted.
            state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
        if q.shape[1] == 1:
            out, final = delta_step(q, k, v, decay, beta, state, scale=scale)
        else:
            out, final = chunked_counted(q, k, v, decay, beta, state, scale=scale, pairs=pairs)
        return out.to(v.dtype), final.to(torch.float64 if v.dtype == torch.float64 else torch.float32)

    return rule


def delta_step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """One token: what the state holds for the key, what is written, what the query reads, each a product with the state."""
    q_BHK, k_BHK, v_BHV, g, beta_BH, S = (x.double() for x in (*(t[:, 0] for t in (q, k, v, log_decay, beta)), state))
    S = S * (g.exp().unsqueeze(-1) if g.dim() == 3 else g.exp()[..., None, None])
    written_BH1V = (v_BHV.unsqueeze(-2) - k_BHK.unsqueeze(-2) @ S) * beta_BH[..., None, None]
    S = S + k_BHK.unsqueeze(-1) @ written_BH1V
    return ((q_BHK * scale).unsqueeze(-2) @ S).transpose(1, 2), S


def conv_twin(x_BSC: Tensor, past_BPC: Tensor, weight_CK: Tensor) -> Tensor:
    """A product of each channel's windows of (past, x) with its taps, in float64, without activation.

    Not ``conv1d``: torch's counter takes the backward of a depthwise convolution for that of a full one.
    """
    windows_BSCK = torch.cat((past_BPC, x_BSC), 1).double().unfold(1, weight_CK.shape[1], 1)
    windows_CRK = windows_BSCK.permute(2, 0, 1, 3).flatten(1, 2)
    y_CR1 = torch.bmm(windows_CRK, weight_CK.double().unsqueeze(-1))
    return y_CR1.view(x_BSC.shape[2], *x_BSC.shape[:2]).permute(1, 2, 0).to(x_BSC.dtype)
