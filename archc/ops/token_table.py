"""Experts by token id: a table says which, scores say with what weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import Dim, product
from archc.ir.tape import Held, Tape
from archc.ir.values import DISTINCT, Param, TensorType
from archc.ops.moe import chosen_weights, scored


@op
class TokenTable(Op):
    """Experts of a token are those that a table has for its id; inputs (x (batch, seq, D), ids (batch, seq)).

    Outputs are those of ``Route``: indices and weights (batch, seq, k). The table (num_ids, top_k) is no parameter; weights are
    the scores of the chosen experts, float32 (hash layers, arXiv 2106.04426; DeepSeek-V4).
    """

    op_name = "token_table"
    num_ids: int
    num_experts: int
    top_k: int
    scoring_func: str
    norm_topk_prob: bool
    routed_scaling_factor: float = 1.0

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, ids = inputs
        if self.top_k > self.num_experts:
            raise GraphError(f"{self.op_name}: {self.top_k} of {self.num_experts} experts can't be chosen")
        if ids.dtype != "int64" or ids.shape != x.shape[:-1]:
            raise GraphError(f"{self.op_name}: {ids} are no ids of the tokens of {x}")
        leading = x.shape[:-1]
        return (TensorType((*leading, self.top_k), "int64"), TensorType((*leading, self.top_k), "float32"))

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        init = f"{DISTINCT}{self.num_experts}"
        return {
            "weight": Param("weight", (self.num_experts, inputs[0].width)),
            "table": Param("table", (self.num_ids, self.top_k), init=init, dtype="int64", trainable=False),
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return product(inputs[0].shape) * (2 * self.num_experts)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> tuple[Held, Held]:
        x = inputs[0]
        scores = scored(tape, self.scoring_func, x, weights["weight"])
        indices = tape.take(weights["table"], inputs[1], (*x.shape[:-1], self.top_k))
        return indices, chosen_weights(tape, scores, indices, self.norm_topk_prob)
