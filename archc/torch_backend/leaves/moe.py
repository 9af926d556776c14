"""Mixture of experts: routing in float32, and experts that run the tokens sorted by expert, without a graph break."""

# Shape suffixes: B batch, S new tokens, T = B x S tokens, E experts, k chosen a token, D width, I inner width, R = T x k rows.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.ir.values import Node
from archc.ops import moe as ops
from archc.ops.elementwise import GatedActivation
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.elementwise import ACTIVATIONS, gated, gating_words
from archc.torch_backend.operators.grouped_linear import grouped_linear
from archc.torch_backend.twins.moe import experts_twin

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda logits: functional.softplus(logits).sqrt(),
}


class Router(nn.Module):
    """What chooses and weighs a token's experts: ``forward(x, *rest)`` is ``choose(logits(x), *rest)``.

    x (B, S, D) -> indices (B, S, k) int64, weights (B, S, k) float32. Training reads logits and choice on their way, for losses
    that balance loads. ``learns_choice``: which experts are chosen follows from the scores.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    scoring_func: str
    learns_choice = True

    def logits(self, x: Tensor) -> Tensor:
        """x (B, S, D) -> (B, S, E) float32."""
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(x.float(), self.weight.float(), bias)

    def scores(self, logits: Tensor) -> Tensor:
        """Affinities of all experts, (B, S, E) float32, not normalised unless the function does."""
        return SCORES[self.scoring_func](logits)

    def choose(self, logits: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        """The choice and its weights."""
        raise NotImplementedError

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        return self.choose(self.logits(x), *rest)


class Route(Router):
    """The best of all experts by score. The correction bias acts on the choice only."""

    e_score_correction_bias: Tensor | None

    def __init__(self, op: ops.Route) -> None:
        super().__init__()
        self.top_k, self.scoring_func, self.norm_topk_prob = op.top_k, op.scoring_func, op.norm_topk_prob
        self.routed_scaling_factor, self.group_score = op.routed_scaling_factor, op.group_score
        self.n_group, self.topk_group = op.n_group, op.topk_group
        self.register_parameter("bias", None)
        self.e_score_correction_bias = None

    def choose(self, logits: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(logits)
        choice = scores if self.e_score_correction_bias is None else scores + self.e_score_correction_bias
        if self.topk_group < self.n_group:
            choice = self._within_best_groups(choice)
        indices = choice.topk(self.top_k, -1, sorted=False)[1]
        weights = scores.gather(-1, indices)
        if self.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return indices, weights * self.routed_scaling_factor

    def _within_best_groups(self, choice: Tensor) -> Tensor:
        grouped = choice.unflatten(-1, (self.n_group, -1))
        judged = grouped.amax(-1) if self.group_score == "max" else grouped.topk(2, -1)[0].sum(-1)
        best = judged.topk(self.topk_group, -1, sorted=False)[1]
        kept = torch.zeros_like(judged, dtype=torch.bool).scatter(-1, best, True)
        return grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)

    def extra_repr(self) -> str:
        experts, width = self.weight.shape
        return f"{width} -> {self.top_k} of {experts}, {self.scoring_func}"


class Experts(nn.Module):
    """gate_proj, up_proj (E, I, D), down_proj (E, D, I): the weighted sum of each token's experts, (B, S, D).

    Plain experts have no gate_proj.
    """

    gate_proj: nn.Parameter | None
    up_proj: nn.Parameter
    down_proj: nn.Parameter
    gate_proj_bias: nn.Parameter | None
    up_proj_bias: nn.Parameter | None
    down_proj_bias: nn.Parameter | None

    def __init__(self, op: ops.Experts, twin: str | None) -> None:
        super().__init__()
        act = op.activation
        self.function, self.weight_on, self.twin = act.function, op.weight_on, twin
        self.gating = gating_words(act) if isinstance(act, GatedActivation) else {}
        for name in ("gate_proj", "gate_proj_bias", "up_proj_bias", "down_proj_bias"):
            self.register_parameter(name, None)

    def forward(self, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        if self.twin is not None:
            return experts_twin(self, x, indices, weights)
        top_k = indices.shape[-1]
        x_TD, expert_R = x.flatten(0, -2), indices.flatten()
        order_R = expert_R.argsort(stable=True)
        sorted_R = expert_R[order_R]
        counts_E = torch.zeros(self.up_proj.shape[0], dtype=torch.int64, device=x.device)
        ends_E = counts_E.scatter_add(0, sorted_R, torch.ones_like(sorted_R)).cumsum(0)
        weight_R1 = weights.flatten()[order_R].unsqueeze(-1).to(x.dtype)
        rows_RD = x_TD[order_R // top_k]
        if self.weight_on == "input":
            rows_RD = rows_RD * weight_R1
        y_RD = self.run(rows_RD, ends_E, sorted_R)
        if self.weight_on == "output":
            y_RD = y_RD * weight_R1
        # Rows back to their tokens, then the k rows of a token added: no atomic adds, so runs are repeatable.
        back_R = torch.empty_like(order_R).scatter(0, order_R, torch.arange(order_R.shape[0], device=x.device))
        return y_RD[back_R].view(*indices.shape, -1).sum(-2)

    def run(self, rows_RD: Tensor, ends_E: Tensor, sorted_R: Tensor) -> Tensor:
        """Rows, sorted by their experts ``sorted_R``, through those: (R, D). Those of expert e end before row ``ends_E[e]``."""
        gate = self._project(rows_RD, self.gate_proj, self.gate_proj_bias, ends_E, sorted_R)
        up = self._project(rows_RD, self.up_proj, self.up_proj_bias, ends_E, sorted_R)
        assert up is not None
        y_RD = self._project(self.middle(gate, up), self.down_proj, self.down_proj_bias, ends_E, sorted_R)
        assert y_RD is not None
        return y_RD

    def middle(self, gate: Tensor | None, up: Tensor) -> Tensor:
        """What stands between the projections of an expert."""
        if gate is None:
            return ACTIVATIONS[self.function](up)
        return gated(gate, up, **self.gating)

    def _project(
        self, rows: Tensor, weight: Tensor | None, bias: Tensor | None, ends_E: Tensor, sorted_R: Tensor
    ) -> Tensor | None:
        if weight is None:
            return None
        y = grouped_linear(rows, weight, ends_E, False)
        return y if bias is None else y + bias[sorted_R]

    def extra_repr(self) -> str:
        experts, inner, width = self.up_proj.shape
        bias = ", bias=True" if self.up_proj_bias is not None else ""
        return f"{experts} x ({width} -> {inner} -> {width}), {self.function}{bias}"


def route(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.Route)
    module = Route(node.op)
    for role, param in node.params.items():
        if hasattr(module, role) and role not in module._parameters:
            delattr(module, role)
        context.register(module, param, role)
    return module


def experts(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.Experts)
    module = Experts(node.op, context.twin)
    for role, param in node.params.items():
        context.register(module, param, role)
    return module
