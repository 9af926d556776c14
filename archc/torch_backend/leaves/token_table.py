"""Experts by token id."""

# Shape suffixes: B batch, S new tokens, k chosen a token.

from __future__ import annotations

from torch import Tensor, nn

from archc.ir.values import Node
from archc.ops.token_table import TokenTable as Op
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.moe import Router


class TokenTable(Router):
    """(x (B, S, D), ids (B, S)) -> the table's experts (B, S, k) int64, and their weights (B, S, k) float32."""

    table: Tensor
    learns_choice = False

    def __init__(self, op: Op) -> None:
        super().__init__()
        self.scoring_func, self.norm_topk_prob = op.scoring_func, op.norm_topk_prob
        self.routed_scaling_factor = op.routed_scaling_factor
        self.register_parameter("bias", None)

    def choose(self, logits: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        (ids,) = rest
        scores = self.scores(logits)
        indices = self.table[ids]
        weights = scores.gather(-1, indices)
        if self.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return indices, weights * self.routed_scaling_factor

    def extra_repr(self) -> str:
        experts, width = self.weight.shape
        return f"{width} -> {self.table.shape[1]} of {experts} by {self.table.shape[0]} ids, {self.scoring_func}"


def token_table(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, Op)
    module = TokenTable(node.op)
    for role, param in node.params.items():
        context.register(module, param, role)
    return module
