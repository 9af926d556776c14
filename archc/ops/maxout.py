"""The largest of each few neighbouring channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Op, op
from archc.ir.tape import Held, Tape
from archc.ir.values import TensorType


@op
class Maxout(Op):
    """(…, width x pool_size) -> (…, width), the largest of each ``pool_size`` channels (arXiv 1302.4389)."""

    op_name = "maxout"
    pool_size: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].width % self.pool_size:
            raise GraphError(f"maxout: {inputs[0].width} channels are no multiple of {self.pool_size}")
        return (inputs[0].with_width(inputs[0].width // self.pool_size),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x = inputs[0]
        shape = (*x.shape[:-1], x.width // self.pool_size)
        return tape.fresh((x,), shape, keeps=[tape.new(shape, "int64", axis=x.axis)])
