"""Readable gated recurrent units in float64, a formula a line: the judge of values, gradients and FLOPs."""

# Shape suffixes: B batch, S new tokens, T tokens of an encoder, N channels of the state, G the three gates of them.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from archc.torch_backend.twins.score import scores_of, weights_of

Tokens = Callable[..., tuple[Tensor, Tensor]]


def gru_tokens_twin(
    x_BSG: Tensor,
    state_BN: Tensor,
    gates: Tensor,
    candidate: Tensor,
    *,
    valid_BS: Tensor | None = None,
    attending: Any = None,
    is_backward: bool = False,
) -> tuple[Tensor, Tensor]:
    """As ``leaves.recurrent.gru_tokens``."""
    size, dtype = state_BN.shape[1], x_BSG.dtype
    U_z, U_r, U = gates[:size].double(), gates[size:].double(), candidate.double()
    x, s = x_BSG.double(), state_BN.double()
    outs: dict[int, Tensor] = {}
    order = list(range(x.shape[1]))
    for t in reversed(order) if is_backward else order:
        given, before, c = x[:, t], s, None
        if attending is not None:
            c = _context(before, attending)
            given = given + c @ attending.context.double().T
        z = torch.sigmoid(given[:, :size] + before @ U_z.T)
        r = torch.sigmoid(given[:, size : 2 * size] + before @ U_r.T)
        new = torch.tanh(given[:, 2 * size :] + (r * before) @ U.T)
        s = (1 - z) * before + z * new
        if valid_BS is not None:
            s = torch.where(valid_BS[:, t : t + 1] != 0, s, before)
        outs[t] = s if c is None else torch.cat((before, c), -1)
    return torch.stack([outs[t] for t in order], 1).to(dtype), s.to(dtype)


def _context(state_BN: Tensor, read: Any) -> Tensor:
    query = (state_BN @ read.query.double().T)[:, None, None]
    scores = scores_of(query, read.keys.double().unsqueeze(1), read.form, read.weight)
    if read.seen is not None:
        unseen = float("-inf") if read.form.weighing == "softmax" else 0.0
        scores = scores.masked_fill(~read.seen[:, None, None], unseen)
    return (weights_of(scores, read.form)[:, 0] @ read.memory.double()).squeeze(1)
