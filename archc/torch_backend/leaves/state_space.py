"""The selective state space of Mamba-2."""

# Shape suffixes: B batch, S new tokens, H heads, P head_dim.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import state_space as ops
from archc.torch_backend.context import Context
from archc.torch_backend.operators.gated_attention import gated_attention_rule
from archc.torch_backend.step import Step, carried
from archc.torch_backend.twins.gated_attention import gated_attention_twin


class StateSpace(nn.Module):
    """SSD with its step, decay and skip: chunks for many tokens, the recurrence for one. ``state`` is written in place."""

    A_log: nn.Parameter
    dt_bias: nn.Parameter
    D: nn.Parameter

    def __init__(self, op: ops.StateSpace, twin: str | None) -> None:
        super().__init__()
        self.head_dim, self.state_size, self.limit, self.twin = op.head_dim, op.state_size, op.time_step_limit, twin

    def forward(
        self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, step: Step | None = None, state: Tensor | None = None
    ) -> Tensor:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        dt_BSH = functional.softplus(dt.to(wide) + self.dt_bias.to(wide))
        if self.limit is not None:
            dt_BSH = dt_BSH.clamp(*self.limit)
        if step is not None and (valid := step.valid()) is not None:
            # A step of 0 neither decays the state nor writes to it.
            dt_BSH = dt_BSH * valid.unsqueeze(-1)
        x_BSHP = x.unflatten(-1, (-1, self.head_dim)).to(wide)
        b, c = (t.unflatten(-1, (-1, self.state_size)) for t in (b, c))
        rule = gated_attention_rule if self.twin is None else gated_attention_twin(self.twin)
        decay_BSH = dt_BSH * -self.A_log.to(wide).exp()
        out, final = rule(c, b, x_BSHP * dt_BSH.unsqueeze(-1), decay_BSH, carried(state, step), scale=1.0)
        if state is not None:
            state.copy_(final)
        return torch.addcmul(out, x_BSHP, self.D.to(wide).unsqueeze(-1)).flatten(-2).to(x.dtype)

    def extra_repr(self) -> str:
        clamped = "" if self.limit is None else f", time_step_limit={self.limit}"
        return f"heads={self.A_log.shape[0]}, head_dim={self.head_dim}, state_size={self.state_size}{clamped}"


def state_space(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.StateSpace)
    module = StateSpace(node.op, context.twin)
    for role in ("A_log", "dt_bias", "D"):
        context.register(module, node.params[role], role)
    return module
