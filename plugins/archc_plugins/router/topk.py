"""The top-k router."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from archc.families import Router
from archc.ops.moe import Route


class TopK(Router):
    """The k best experts a token by a learned score; grouped choice and correction bias as DeepSeek-V3, arXiv 2412.19437.

    A softmax over the chosen logits alone equals a softmax over all with ``norm_topk_prob``.
    """

    scoring_func: Literal["softmax", "sigmoid", "sqrtsoftplus"]
    """How logits become scores."""
    norm_topk_prob: bool
    """The chosen weights are divided by their sum (softmax of the chosen logits is softmax with true)."""
    routed_scaling_factor: PositiveFloat = 1.0
    """Factor on the weights."""
    correction_bias: bool = False
    """A bias that counts for the choice only; kept up by training code, not by gradients."""
    bias: bool = False
    """A bias on the logits (gpt-oss)."""
    n_group: PositiveInt = 1
    """Groups of experts."""
    topk_group: PositiveInt = 1
    """Groups that stay in the choice."""
    group_score: Literal["max", "top2_sum"] = "top2_sum"
    """What a group is judged by: its best expert, or its two best together."""
    weight_on: Literal["output", "input"] = "output"
    """Where the weight is applied: to an expert's output, or to its input (Llama 4)."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.topk_group > self.n_group:
            yield "topk_group", f"should be at most n_group, {self.n_group} (found {self.topk_group})"

    def misfits(self, num_experts: int, top_k: int) -> Iterator[tuple[str, str]]:
        groups = self.n_group
        if num_experts % groups:
            yield "n_group", f"should divide num_experts, {num_experts} (found {groups})"
        elif num_experts >= top_k > self.topk_group * (num_experts // groups):
            yield (
                "topk_group",
                f"leaves {self.topk_group * (num_experts // groups)} experts, fewer than num_experts_per_tok",
            )
        elif self.group_score == "top2_sum" and self.topk_group < groups == num_experts:
            yield "n_group", "leaves one expert a group, and group_score top2_sum needs two"

    def weighs(self) -> Literal["output", "input"]:
        return self.weight_on

    def route(self, num_experts: int, top_k: int) -> Route:
        """The op for so many experts."""
        return Route(
            num_experts=num_experts,
            top_k=top_k,
            scoring_func=self.scoring_func,
            norm_topk_prob=self.norm_topk_prob,
            routed_scaling_factor=self.routed_scaling_factor,
            correction_bias=self.correction_bias,
            bias=self.bias,
            n_group=self.n_group,
            topk_group=self.topk_group,
            group_score=self.group_score,
        )
