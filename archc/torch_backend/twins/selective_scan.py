# B batch, S tokens, I channels, N numbers of a channel's state
"""The selective scan spelled out, in float64, two products a token: the judge of the fast operator, and of its count.

Layouts as `archc.torch_backend.operators.selective_scan.selective_scan_rule`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def selective_scan_twin(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One token a step: the definition."""
    x_BSI, dt_BSI, a_IN, b_BSN, c_BSN = (tensor.double() for tensor in (x, dt, a, b, c))
    S_BIN = x_BSI.new_zeros(x.shape[0], *a.shape) if state is None else state.double()
    outs = []
    for t in range(x.shape[1]):
        dt_BI1 = dt_BSI[:, t].unsqueeze(-1)
        written = torch.bmm(dt_BI1 * x_BSI[:, t].unsqueeze(-1), b_BSN[:, t : t + 1])
        S_BIN = (dt_BI1 * a_IN).exp() * S_BIN + written
        outs.append(torch.bmm(S_BIN, c_BSN[:, t].unsqueeze(-1)))
    return torch.cat(outs, -1).transpose(1, 2).to(dt.dtype), S_BIN.to(dt.dtype)
