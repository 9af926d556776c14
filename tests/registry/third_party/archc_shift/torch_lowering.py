"""The op in torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.torch_backend.context import Context
from archc.torch_backend.step import Step, carried


class Shift(nn.Module):
    """x (batch, seq, width) -> same; ``last`` (batch, 1, width) is written in place."""

    weight: nn.Parameter

    def forward(self, x: Tensor, step: Step | None = None, last: Tensor | None = None) -> Tensor:
        held = carried(last, step)
        before = x.new_zeros(x.shape[0], 1, x.shape[2]) if held is None else held.to(x.dtype)
        columns = torch.cat((before, x), 1)
        if last is not None:
            if step is None or step.new is None:
                last.copy_(columns[:, -1:])
            else:
                last.copy_(columns.gather(1, step.new.view(-1, 1, 1).expand(-1, 1, x.shape[2])))
        return self.weight * x + (1 - self.weight) * columns[:, :-1]


def shift(node: Node, context: Context) -> nn.Module:
    module = Shift()
    context.register(module, node.params["weight"], "weight")
    return module
