"""The router that looks experts up by token id."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from archc.errors import GraphError
from archc.families import Router
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.token_table import TokenTable as Op


class TokenTable(Router):
    """A table says which experts a token id has, scores say with what weight (hash layers, arXiv 2106.04426; DeepSeek-V4).

    The table is saved with the weights and not trained; a new model's has experts drawn by chance.
    """

    scoring_func: Literal["softmax", "sigmoid", "sqrtsoftplus"]
    """How logits become scores."""
    norm_topk_prob: bool
    """The weights of a token's experts are divided by their sum."""
    routed_scaling_factor: PositiveFloat = 1.0
    """Factor on the weights."""

    def choose(self, g: Builder, x: Value, num_experts: int, top_k: int) -> tuple[Value, Value]:
        if g.ids is None or not g.num_ids:
            raise GraphError(f"{g.path}: router token_table looks experts up by token id, and this stack reads no ids")
        op = Op(
            num_ids=g.num_ids,
            num_experts=num_experts,
            top_k=top_k,
            scoring_func=self.scoring_func,
            norm_topk_prob=self.norm_topk_prob,
            routed_scaling_factor=self.routed_scaling_factor,
        )
        indices, weights = g.emit(op, (x, g.ids), name="router")
        return indices, weights
