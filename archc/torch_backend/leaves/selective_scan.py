"""The selective scan of Mamba-1."""

# Shape suffixes: B batch, S new tokens, I channels.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import selective_scan as ops
from archc.torch_backend.context import Context
from archc.torch_backend.operators.selective_scan import selective_scan_rule
from archc.torch_backend.step import Step, carried
from archc.torch_backend.twins.selective_scan import selective_scan_twin


class SelectiveScan(nn.Module):
    """S6 with its step, decays and skip. ``state`` is written in place."""

    A_log: nn.Parameter
    dt_bias: nn.Parameter
    D: nn.Parameter

    def __init__(self, twin: str | None) -> None:
        super().__init__()
        self.twin = twin

    def forward(
        self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, step: Step | None = None, state: Tensor | None = None
    ) -> Tensor:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        x_BSI = x.to(wide)
        dt_BSI = functional.softplus(dt.to(wide) + self.dt_bias.to(wide))
        if step is not None and (valid := step.valid()) is not None:
            # A step of 0 neither decays the state nor writes to it.
            dt_BSI = dt_BSI * valid.unsqueeze(-1)
        rule = selective_scan_rule if self.twin is None else selective_scan_twin
        out, final = rule(x_BSI, dt_BSI, -self.A_log.to(wide).exp(), b, c, carried(state, step))
        if state is not None:
            state.copy_(final)
        return torch.addcmul(out, x_BSI, self.D.to(wide)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"channels={self.A_log.shape[0]}, state_size={self.A_log.shape[1]}"


def selective_scan(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.SelectiveScan)
    module = SelectiveScan(context.twin)
    for role in ("A_log", "dt_bias", "D"):
        context.register(module, node.params[role], role)
    return module
