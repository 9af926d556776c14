"""Readable attention by a form of scores, in float64: one query at a time, or the whole rectangle behind a mask."""

# Shape suffixes: B batch, S new tokens, T keys, N heads, H width of queries and keys, V value width.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from archc.ir.op import Pairs
from archc.ops.score import ScoreForm

SMALLEST = 1e-20
"""What a row of scores is divided by at least, so that one of zeros gives zeros."""

_FUNCTIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    "tanh": torch.tanh,
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "elu_plus_one": lambda x: torch.where(x > 0, x + 1, x.clamp(max=0).exp()),
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * torch.sigmoid(x),
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def twin_of(pairs: Pairs) -> Callable[..., Tensor]:
    """The twin that computes ``needed`` pairs one query at a time, or the ``dense`` rectangle."""
    return one_query_at_a_time if pairs == "needed" else dense


def dense(
    q_BNSH: Tensor,
    k_BNTH: Tensor,
    v_BNTV: Tensor,
    *,
    form: ScoreForm,
    weight_NH: Tensor | None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """All scores, then a mask: (B, N, S, V)."""
    scores = scores_of(q_BNSH.double(), k_BNTH.double(), form, weight_NH)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf") if form.weighing == "softmax" else 0.0)
    return (weights_of(scores, form) @ v_BNTV.double()).to(v_BNTV.dtype)


def one_query_at_a_time(
    q_BNSH: Tensor,
    k_BNTH: Tensor,
    v_BNTV: Tensor,
    *,
    form: ScoreForm,
    weight_NH: Tensor | None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Each query against only the keys it sees."""
    batch, _, seq, _ = q_BNSH.shape
    if mask is None:
        seen = torch.ones(seq, k_BNTH.shape[2], dtype=torch.bool)
        mask = (seen.tril() if causal else seen).expand(1, 1, -1, -1)
    rows: list[Tensor] = []
    for b in range(batch):
        columns: list[Tensor] = []
        for s in range(seq):
            # One mask may be that of all rows, or of all queries.
            index = mask[min(b, mask.shape[0] - 1), 0, min(s, mask.shape[2] - 1)].nonzero().flatten()
            one, keys = q_BNSH[b : b + 1, :, s : s + 1].double(), k_BNTH[b : b + 1, :, index].double()
            weights = weights_of(scores_of(one, keys, form, weight_NH), form)
            columns.append(weights @ v_BNTV[b : b + 1, :, index].double())
        rows.append(torch.cat(columns, 2))
    return torch.cat(rows, 0).to(v_BNTV.dtype)


def scores_of(q_BNSH: Tensor, k_BNTH: Tensor, form: ScoreForm, weight_NH: Tensor | None) -> Tensor:
    """(B, N, S, T)."""
    function = _FUNCTIONS[form.function]
    if weight_NH is None:
        return function(q_BNSH @ k_BNTH.transpose(-1, -2) * form.scale)
    met = function((q_BNSH.unsqueeze(3) + k_BNTH.unsqueeze(2)) * form.scale)
    return (met @ weight_NH.double()[:, None, :, None]).squeeze(-1)


def weights_of(scores: Tensor, form: ScoreForm) -> Tensor:
    """A row's weights, unseen keys being at minus infinity (softmax) or zero."""
    if form.weighing == "softmax":
        return scores.softmax(-1)
    return scores / scores.abs().sum(-1, keepdim=True).clamp(min=SMALLEST)
