"""Mamba-2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value


class Mamba2(Mixer):
    """Mamba-2, arXiv 2405.21060: selective state space, a decay a head. State a layer: heads x state_size x head_dim, fixed.

    Each group of B and C serves the next num_heads / n_groups heads. The output times SiLU of its gate is normed in n_groups
    slices, with the eps of the spec's norm and a plain weight.
    """

    keeps_rows: ClassVar[bool] = False

    num_heads: PositiveInt
    """Heads, each with its own step, decay, skip and state."""
    head_dim: PositiveInt
    """Channels of a head."""
    state_size: PositiveInt
    """Channels of B and C."""
    n_groups: PositiveInt = 1
    """Groups of B and C, and slices of the norm of the output; they divide num_heads."""
    conv_kernel: Annotated[int, Field(ge=2)] = 4
    """Columns of the short convolutions."""
    time_step_limit: tuple[NonNegativeFloat, PositiveFloat] | None = None
    """Lowest and highest step. Default: none."""
    bias: bool = False
    """Biases on the projections in and out."""
    conv_bias: bool = True
    """Biases on the short convolutions."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_heads % self.n_groups:
            yield "n_groups", f"should divide num_heads, {self.num_heads} (found {self.n_groups})"
        if self.time_step_limit is not None and self.time_step_limit[0] > self.time_step_limit[1]:
            yield "time_step_limit", f"should be [lowest, highest] (found {list(self.time_step_limit)})"

    def define(self, g: Builder, x: Value) -> Value:
        width, grouped = self.num_heads * self.head_dim, self.n_groups * self.state_size

        def project(name: str, size: int, axis: str) -> Value:
            return g.linear(name, x, size, bias=self.bias, axis=axis)

        gate, h = project("gate_proj", width, "heads"), project("x_proj", width, "heads")
        b, c = (project(f"{name}_proj", grouped, "kv_heads") for name in "bc")
        dt = project("dt_proj", self.num_heads, "heads")
        streams = ("x_conv1d", "b_conv1d", "c_conv1d")
        h, b, c = g.causal_conv(streams, (h, b, c), kernel=self.conv_kernel, bias=self.conv_bias)
        o = g.state_space("state_space", h, b, c, dt, n_groups=self.n_groups, time_step_limit=self.time_step_limit)
        o = g.gated_group_norm("o_norm", o, gate, groups=self.n_groups, eps=self.norm.epsilon())
        return g.linear("out_proj", o, x.width, bias=self.bias)
