"""Attention by additive scores and by kernels of products."""

# Shape suffixes: B batch, S new tokens, T keys, N heads, H width of queries and keys, V value width.

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops import score as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.attention import Attention
from archc.torch_backend.leaves.elementwise import ACTIVATIONS
from archc.torch_backend.leaves.masked_attention import BidirectionalAttention, CrossAttention
from archc.torch_backend.leaves.softmax import added
from archc.torch_backend.twins.score import SMALLEST, twin_of

Scored = Callable[..., Tensor]
SLAB = 1 << 24
"""Numbers of the vectors in which queries and keys meet that are held at a time where no gradient keeps them."""


def attend_scored(
    q_BNSH: Tensor,
    k_BNTH: Tensor,
    v_BNTV: Tensor,
    *,
    form: ops.ScoreForm,
    weight_NH: Tensor | None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """(B, N, S, V), scores and weights in float32; the mask is of bools. ``causal`` is for as many keys as queries."""
    scores = meet(q_BNSH, k_BNTH, form=form, weight_NH=weight_NH)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return torch.matmul(weigh(scores, form, mask).to(v_BNTV.dtype), v_BNTV)


def meet(q_BNSH: Tensor, k_BNTH: Tensor, *, form: ops.ScoreForm, weight_NH: Tensor | None) -> Tensor:
    """Scores (B, N, S, T), float32 or float64."""
    act = ACTIVATIONS[form.function] if form.function is not None else None
    if weight_NH is None:
        scores = _wide(torch.matmul(q_BNSH, k_BNTH.transpose(-1, -2))) * form.scale
        return scores if act is None else act(scores)
    queries = q_BNSH.shape[2]
    # Every query meets every key in a vector of its own, so a long text is met a few queries at a time.
    slab = (
        queries if torch.compiler.is_compiling() else max(1, SLAB // max(1, q_BNSH[:, :, :1].numel() * k_BNTH.shape[2]))
    )
    if slab >= queries:
        return _summed(q_BNSH, k_BNTH, act, form.scale, weight_NH)
    parts = [_summed(each, k_BNTH, act, form.scale, weight_NH) for each in q_BNSH.split(slab, 2)]
    return torch.cat(parts, 2)


def _summed(
    q_BNSH: Tensor, k_BNTH: Tensor, act: Callable[[Tensor], Tensor] | None, scale: float, weight_NH: Tensor
) -> Tensor:
    # Heads first in memory, so that the product below takes what they meet in as it lies, and backward keeps no copy of it.
    met_BNSTH = (q_BNSH.contiguous().unsqueeze(3) + k_BNTH.contiguous().unsqueeze(2)) * scale
    if act is not None:
        met_BNSTH = act(met_BNSTH)
    return _wide(torch.matmul(met_BNSTH.flatten(2, 3), weight_NH.unsqueeze(-1))).view(met_BNSTH.shape[:-1])


def weigh(scores_BNST: Tensor, form: ops.ScoreForm, mask: Tensor | None) -> Tensor:
    """Weights of the keys that a mask of bools lets through, like the scores."""
    if form.weighing == "softmax":
        # A sum keeps no mask for backward.
        return (scores_BNST if mask is None else scores_BNST + added(mask, scores_BNST.dtype)).softmax(-1)
    seen = scores_BNST if mask is None else scores_BNST.masked_fill(~mask, 0.0)
    return seen / seen.abs().sum(-1, keepdim=True).clamp(min=SMALLEST)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class ScoreAttention(Attention):
    """Causal attention by a form of scores, over caches as the plain one's."""

    weight: nn.Parameter | None
    adds_masks: ClassVar[bool] = False

    def __init__(self, op: ops.ScoreAttention, kernel: Scored) -> None:
        super().__init__(op, kernel)
        self.form = op.form
        self.register_parameter("weight", None)

    def _call(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
        return self.kernel(q, k, v, form=self.form, weight_NH=self.weight, mask=mask, causal=causal)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {_text(self.form)}"


class BidirectionalScoreAttention(BidirectionalAttention):
    """Attention by a form of scores among all tokens of a call."""

    weight: nn.Parameter | None
    adds_masks: ClassVar[bool] = False

    def __init__(self, op: ops.BidirectionalScoreAttention, kernel: Scored) -> None:
        super().__init__(op, kernel)
        self.form = op.form
        self.register_parameter("weight", None)

    def _call(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return self.kernel(q, k, v, form=self.form, weight_NH=self.weight, mask=mask)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {_text(self.form)}"


class CrossScoreAttention(CrossAttention):
    """Attention by a form of scores to an encoder, whose keys and values are kept."""

    weight: nn.Parameter | None

    def __init__(self, op: ops.CrossScoreAttention, kernel: Scored) -> None:
        super().__init__(op, kernel)
        self.form = op.form
        self.register_parameter("weight", None)

    def _call(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return self.kernel(q, k, v, form=self.form, weight_NH=self.weight, mask=mask)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {_text(self.form)}"


def _text(form: ops.ScoreForm) -> str:
    return f"{form.meeting}, {form.function or 'as it is'}, {form.weighing}"


def score_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.ScoreAttention)
    return _with_weight(ScoreAttention(node.op, _kernel(context)), node, context)


def bidirectional_score_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.BidirectionalScoreAttention)
    return _with_weight(BidirectionalScoreAttention(node.op, _kernel(context)), node, context)


def cross_score_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.CrossScoreAttention)
    return _with_weight(CrossScoreAttention(node.op, _kernel(context)), node, context)


def _kernel(context: Context) -> Scored:
    return attend_scored if context.twin is None else twin_of(context.twin)


def _with_weight(module: nn.Module, node: Node, context: Context) -> nn.Module:
    if "weight" in node.params:
        context.register(module, node.params["weight"], "weight")
    return module
