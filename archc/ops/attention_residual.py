"""Attention over depth: what a branch reads of the outputs of earlier blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import Dim, product
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType
from archc.ops.norm import rms


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

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        first, count = inputs[0], len(inputs)
        if count == 1:
            return first
        leading, wide = first.shape[:-1], tape.wide(first).dtype
        query = tape.mul(tape.cast(weights["proj"], wide), tape.cast(weights["norm"], wide))
        scores = [tape.sum(tape.mul(rms(tape, tape.wide(value), None, None), query), (*leading, 1)) for value in inputs]
        shares = tape.cast(tape.of_output(tape.cat(scores, (*leading, count))), first.dtype)
        out = tape.mul(first, shares)
        for value in inputs[1:]:
            out = tape.add(out, tape.mul(value, shares))
        return out
