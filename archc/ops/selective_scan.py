"""The selective scan of Mamba-1: a step a channel and token, a decay a channel and state, a state of a few numbers a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, SEQ, Dim
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, State, TensorType
from archc.ops.linear_rules import selective


@op
class SelectiveScan(Op):
    """S6, arXiv 2312.00752; inputs (x, dt, B, C), state (batch, channels, state_size).

    A step ``dt = softplus(dt + dt_bias)`` a channel and token; then ``S = exp(-exp(A_log) dt) S + (dt x) B^T`` and
    ``y = S C + D x``. All channels share B and C. Computed in float32 whatever the model's dtype.
    """

    op_name = "selective_scan"
    pieces = ()
    state_size: int
    state_dtype: str = "float32"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, dt, b, c = inputs
        if dt.width != x.width or (b.width, c.width) != (self.state_size,) * 2:
            raise GraphError(f"selective_scan: {x}, {dt}, {b}, {c} don't fit a state of {self.state_size} a channel")
        return (x,)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        channels, axis = inputs[0].width, inputs[0].axis
        return {
            "A_log": Param("A_log", (channels, self.state_size), axes=(axis, None), init="a_log", dtype="float32"),
            "dt_bias": Param("dt_bias", (channels,), axes=(axis,), init="dt_bias", dtype="float32"),
            "D": Param("D", (channels,), axes=(axis,), init="ones", dtype="float32"),
        }

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        shape = (BATCH, inputs[0].width, self.state_size)
        axes = (None, inputs[0].axis, None)
        return {
            "recurrent_state": State(
                "recurrent_state", shape, shape, growth="fixed", role="recurrent", dtype=self.state_dtype, axes=axes
            )
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        # What is written and what is read, each a product with the state; there is no other form.
        return BATCH * SEQ * (4 * inputs[0].width * self.state_size)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x, dt, b, c = (tape.wide(each) for each in inputs)
        dt = tape.of_input(tape.add(dt, weights["dt_bias"]))
        rates = tape.scaled(tape.of_output(weights["A_log"]))
        out = selective(tape, x, dt, rates, b, c)
        return tape.cast(tape.add(out, tape.mul(x, weights["D"])), inputs[0].dtype)
