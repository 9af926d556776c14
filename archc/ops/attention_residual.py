"""Attention over depth: what a branch reads of the outputs of earlier blocks."""

from __future__ import annotations

from collections.abc import Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import Dim, product
from archc.ir.values import Param, TensorType


@op
class AttentionResidual(Op):
    """A softmax mixture of n values of the residual stream (Attention Residuals, arXiv 2603.15031), each (batch, seq, D).

    With a learned query w (``proj``), the same for all tokens, and keys that are the values normed,
    ``alpha = softmax_i(w . rms_norm(v_i))`` and the output is ``sum_i alpha_i v_i``. One value alone is itself, whatever
    the weights are.
    """

    op_name = "attention_residual"
    eps: float

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if not inputs or any(value.key() != inputs[0].key() for value in inputs):
            raise GraphError(f"attention_residual: {', '.join(map(str, inputs)) or 'nothing'} can't be mixed")
        return (inputs[0],)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        width = inputs[0].width
        return {
            "norm": Param("norm.weight", (width,), init="ones"),
            "proj": Param("proj.weight", (1, width)),
        }

    def idle_roles(self, inputs: Sequence[TensorType]) -> tuple[str, ...]:
        return ("norm", "proj") if len(inputs) == 1 else ()

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        """Scores and the sum."""
        return product(inputs[0].shape) * (4 * len(inputs)) if len(inputs) > 1 else 0
