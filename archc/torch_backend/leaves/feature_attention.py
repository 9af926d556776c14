"""Attention by feature maps over its state of sums."""

# Shape suffixes: B batch, S new tokens, N heads, K features, V value width.

from __future__ import annotations

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import feature_attention as ops
from archc.torch_backend.context import Context
from archc.torch_backend.operators.gated_attention import gated_attention_rule
from archc.torch_backend.step import Step, carried
from archc.torch_backend.twins.gated_attention import gated_attention_twin


class FeatureAttention(nn.Module):
    """Sums of values and of weights by one linear attention without decay, then their quotient. ``state`` is written in place."""

    def __init__(self, op: ops.FeatureAttention, twin: str | None) -> None:
        super().__init__()
        self.num_heads, self.key_dim, self.value_dim, self.eps = op.num_heads, op.key_dim, op.value_dim, op.eps
        self.twin = twin

    def forward(self, f: Tensor, h: Tensor, v: Tensor, step: Step | None = None, state: Tensor | None = None) -> Tensor:
        dtype, wide = v.dtype, torch.float64 if v.dtype == torch.float64 else torch.float32
        if step is not None and (valid := step.valid()) is not None:
            h = h * valid.unsqueeze(-1)
        f, h = (x.unflatten(-1, (-1, self.key_dim)).to(wide) for x in (f, h))
        v = _with_ones(v.unflatten(-1, (-1, self.value_dim)).to(wide))
        no_decay = v.new_zeros(()).expand(v.shape[:3])
        rule = gated_attention_rule if self.twin is None else gated_attention_twin(self.twin)
        sums, final = rule(f, h, v, no_decay, carried(state, step), scale=1.0)
        if state is not None:
            state.copy_(final)
        return (sums[..., :-1] / (sums[..., -1:] + self.eps)).flatten(-2).to(dtype)

    def extra_repr(self) -> str:
        return f"heads={self.num_heads}, features={self.key_dim}, value_dim={self.value_dim}, eps={self.eps}"


class BidirectionalFeatureAttention(nn.Module):
    """The sums over all tokens of a call, in float32, and each query's quotient of them; it keeps nothing."""

    def __init__(self, op: ops.BidirectionalFeatureAttention, twin: str | None) -> None:
        super().__init__()
        self.num_heads, self.key_dim, self.value_dim, self.eps = op.num_heads, op.key_dim, op.value_dim, op.eps
        self.twin = twin

    def forward(self, f: Tensor, h: Tensor, v: Tensor, padding: Tensor | None = None) -> Tensor:
        dtype = v.dtype
        wide = torch.float64 if self.twin is not None or dtype == torch.float64 else torch.float32
        if padding is not None:
            h = h * padding.unsqueeze(-1)
        f, h, v = (
            x.unflatten(-1, (-1, width)).transpose(1, 2).to(wide)
            for x, width in ((f, self.key_dim), (h, self.key_dim), (v, self.value_dim))
        )
        with torch.autocast(v.device.type, enabled=False):
            sums = f @ (h.transpose(2, 3) @ _with_ones(v))
        return (sums[..., :-1] / (sums[..., -1:] + self.eps)).transpose(1, 2).flatten(-2).to(dtype)

    def extra_repr(self) -> str:
        return f"heads={self.num_heads}, features={self.key_dim}, value_dim={self.value_dim}, eps={self.eps}"


def _with_ones(v_BSNV: Tensor) -> Tensor:
    return torch.cat((v_BSNV, v_BSNV.new_ones(()).expand(*v_BSNV.shape[:-1], 1)), -1)


def bidirectional_feature_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.BidirectionalFeatureAttention)
    return BidirectionalFeatureAttention(node.op, context.twin)


def feature_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.FeatureAttention)
    return FeatureAttention(node.op, context.twin)
