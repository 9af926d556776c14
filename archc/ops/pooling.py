"""One vector for a whole text: its first token, the mean of its tokens, or its last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from archc.errors import GraphError
from archc.ir.op import Op, op
from archc.ir.tape import Held, Tape
from archc.ir.values import TensorType


@op
class Pool(Op):
    """(x (batch, tokens, width)[, padding (batch, tokens)]) -> (batch, width).

    ``token`` is ``first``, ``mean`` or ``last``. ``padding``, int64, is 1 for tokens and 0 for what counts for none of them,
    left or right. Over a cache the tokens are those of the call.
    """

    op_name = "pool"
    takes_step: ClassVar[bool] = True
    token: str
    has_padding: bool = False

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = inputs[0]
        if self.token not in ("first", "mean", "last"):
            raise GraphError(f"pool: {self.token} is none of first, mean and last")
        if len(x.shape) != 3 or len(inputs) != 1 + self.has_padding or inputs[-1].shape[:2] != x.shape[:2]:
            raise GraphError(f"pool: {', '.join(map(str, inputs))} are no tokens of a batch, and their padding")
        return (TensorType((x.shape[0], x.width), x.dtype),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x = inputs[0]
        shape = (x.shape[0], x.width)
        return tape.sum(x, shape) if self.token == "mean" else tape.view(x, shape)
