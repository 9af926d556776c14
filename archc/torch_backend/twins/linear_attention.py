"""Readable linear mixers, the judges of the fast ones."""

# Shape suffixes: B batch, P past columns, S new tokens, C channels, K kernel.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from archc.torch_backend.operators.gated_delta import gated_delta_recurrent
from archc.torch_backend.twins.gated_delta import chunked_counted


def delta_twin(pairs: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The chunked rule in matmuls that count ``pairs``; one token is the recurrence, which is its own twin."""

    def rule(
        q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor | None, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        if state is None:
            # The first chunk's products with an empty state are part of the form, so they are computed and counted.
            state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
        if q.shape[1] == 1:
            return gated_delta_recurrent(q, k, v, decay, beta, state, scale=scale)
        out, final = chunked_counted(q, k, v, decay, beta, state, scale=scale, pairs=pairs)
        return out.to(v.dtype), final.float()

    return rule


def conv_twin(x_BSC: Tensor, past_BPC: Tensor, weight_CK: Tensor) -> Tensor:
    """torch's depthwise convolution over (past, x), without activation."""
    z_BCT = torch.cat((past_BPC, x_BSC), 1).transpose(1, 2)
    return torch.nn.functional.conv1d(z_BCT, weight_CK.unsqueeze(1), groups=weight_CK.shape[0]).transpose(1, 2)
