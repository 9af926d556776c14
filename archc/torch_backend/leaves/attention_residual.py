"""Attention over depth, value by value, so that no stack of them is made; and its readable form."""

# Shape suffixes: B batch, S new tokens, D width, N values that are mixed.

from __future__ import annotations

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import attention_residual as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.norm import rms
from archc.torch_backend.twins.attention_residual import mixed


class AttentionResidual(nn.Module):
    """``sum_i alpha_i v_i`` with ``alpha = softmax_i(w . rms_norm(v_i))``; the softmax in float32."""

    def __init__(self, op: ops.AttentionResidual, *, is_twin: bool) -> None:
        super().__init__()
        self.eps, self.is_twin = op.eps, is_twin
        self.norm, self.proj = nn.Module(), nn.Module()

    def forward(self, *values_BSD: Tensor) -> Tensor:
        first = values_BSD[0]
        if len(values_BSD) == 1:
            return first
        norm_D, proj_1D = self.norm.weight, self.proj.weight
        assert isinstance(norm_D, Tensor)
        assert isinstance(proj_1D, Tensor)
        if self.is_twin:
            return mixed(values_BSD, norm_D, proj_1D, self.eps)
        query_D = proj_1D[0].float() * norm_D.float() if first.dtype != torch.float64 else proj_1D[0] * norm_D
        scores = [
            (rms(value.to(query_D.dtype), None, self.eps) * query_D).sum(-1, keepdim=True) for value in values_BSD
        ]
        shares_BSN = torch.cat(scores, -1).softmax(-1).to(first.dtype)
        out = first * shares_BSN[..., :1]
        for number, value in enumerate(values_BSD[1:], 1):
            out = torch.addcmul(out, value, shares_BSN[..., number : number + 1])
        return out

    def extra_repr(self) -> str:
        return f"eps={self.eps}"


def attention_residual(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.AttentionResidual)
    module = AttentionResidual(node.op, is_twin=context.twin is not None)
    context.register(module.norm, node.params["norm"], "weight")
    context.register(module.proj, node.params["proj"], "weight")
    return module
