"""The op: shapes, weights and state, no torch."""

from __future__ import annotations

from collections.abc import Sequence

from archc.ir.op import Op, op
from archc.ir.size import BATCH
from archc.ir.values import Param, State, TensorType


@op
class Shift(Op):
    """``w x_t + (1 - w) x_(t-1)`` a channel, the token shift of RWKV (arXiv 2305.13048)."""

    op_name = "shift"
    cache_dtype: str

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return {"weight": Param("weight", (inputs[0].width,), init="ones")}

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        shape = (BATCH, 1, inputs[0].width)
        return {"last": State("last", shape, shape, growth="fixed", role="convolution", dtype=self.cache_dtype)}
