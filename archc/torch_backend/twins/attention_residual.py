"""Readable attention over depth: values side by side, keys, scores, a softmax, a product."""

# Shape suffixes: B batch, S new tokens, N values that are mixed, D width.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def mixed(values_BSD: Sequence[Tensor], norm_D: Tensor, proj_1D: Tensor, eps: float) -> Tensor:
    """``sum_i alpha_i v_i`` with ``alpha = softmax_i(w . rms_norm(v_i))`` in float64, (B, S, D)."""
    values_BSND = torch.stack([value.double() for value in values_BSD], -2)
    keys_BSND = values_BSND / (values_BSND.square().mean(-1, keepdim=True) + eps).sqrt() * norm_D.double()
    scores_BSN1 = keys_BSND @ proj_1D.double().t()
    mixed_BS1D = scores_BSN1.softmax(-2).transpose(-1, -2) @ values_BSND
    return mixed_BS1D.squeeze(-2).to(values_BSD[0].dtype)
