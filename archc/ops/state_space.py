"""The selective state space of Mamba-2: a decay and a step a head and token, a state as wide as its keys times its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, Dim
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, State, TensorType
from archc.ops.linear_attention import gated_flops
from archc.ops.linear_rules import gated


@op
class StateSpace(Op):
    """State space duality (SSD), arXiv 2405.21060; inputs (x, B, C, dt), state (batch, heads, state_size, head_dim).

    A step ``dt = softplus(dt + dt_bias)``, clamped to ``time_step_limit`` where that is given, a head and token; then
    ``S = exp(-exp(A_log) dt) S + B (dt x)^T`` and ``y = C S + D x``. A group of B and C serves the next num_heads / n_groups
    heads. Computed in float32 whatever the model's dtype.
    """

    op_name = "state_space"
    pieces = (("num_heads", "heads"), ("n_groups", "kv_heads"))
    num_heads: int
    head_dim: int
    n_groups: int
    state_size: int
    time_step_limit: tuple[float, float] | None = None
    state_dtype: str = "float32"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, b, c, dt = inputs
        if self.n_groups < 1 or self.num_heads % self.n_groups:
            raise GraphError(f"state_space: {self.num_heads} heads are no multiple of {self.n_groups} groups")
        grouped = self.n_groups * self.state_size
        if (x.width, b.width, c.width, dt.width) != (self.num_heads * self.head_dim, grouped, grouped, self.num_heads):
            raise GraphError(
                f"state_space: {x}, {b}, {c}, {dt} don't fit {self.num_heads} heads of {self.head_dim} "
                f"and {self.n_groups} groups of {self.state_size}"
            )
        return (x.with_width(x.width, "heads"),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        inits = {"A_log": "a_log", "dt_bias": "dt_bias", "D": "ones"}
        return {
            name: Param(name, (self.num_heads,), axes=("heads",), init=init, dtype="float32")
            for name, init in inits.items()
        }

    def units(self, inputs: Sequence[TensorType]) -> dict[str, int]:
        """Heads, and groups of B and C, whose projections are the kv_heads."""
        return {"heads": self.num_heads, "kv_heads": self.n_groups}

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        shape = (BATCH, self.num_heads, self.state_size, self.head_dim)
        axes = (None, "heads", None, None)
        return {
            "recurrent_state": State(
                "recurrent_state", shape, shape, growth="fixed", role="recurrent", dtype=self.state_dtype, axes=axes
            )
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return BATCH * gated_flops(self.num_heads, self.n_groups, self.state_size, self.head_dim, form, pairs)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x, b, c, dt = inputs
        batch, seq, _ = x.shape
        dt = tape.of_input(tape.add(tape.wide(dt), weights["dt_bias"]))
        if self.time_step_limit is not None:
            dt = tape.of_input(dt)
        values = tape.view(tape.wide(x), (batch, seq, self.num_heads, self.head_dim))
        b, c = (tape.view(each, (batch, seq, self.n_groups, self.state_size)) for each in (b, c))
        decay = tape.mul(dt, tape.scaled(tape.of_output(weights["A_log"])))
        out = gated(tape, c, b, tape.mul(values, dt), decay)
        return tape.cast(tape.view(tape.add(out, tape.mul(values, weights["D"])), x.shape), x.dtype)
