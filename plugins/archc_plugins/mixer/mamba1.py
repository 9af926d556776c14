"""Mamba-1."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.selective_scan import SelectiveScan


class Mamba1(Mixer):
    """Mamba-1, arXiv 2312.00752: selective state space, a decay a channel and state. State a layer: inner width x state_size."""

    keeps_rows: ClassVar[bool] = False

    intermediate_size: PositiveInt
    """Inner width."""
    state_size: PositiveInt
    """Numbers that each channel keeps, and channels of B and C."""
    dt_rank: PositiveInt
    """Width from which the steps are projected."""
    conv_kernel: Annotated[int, Field(ge=2)] = 4
    """Columns of the short convolution."""
    inner_norm: bool = False
    """The spec's norm on the low-rank step, B and C (Jamba, arXiv 2403.19887)."""
    bias: bool = False
    """Biases on the projections in and out."""
    conv_bias: bool = True
    """Bias on the short convolution."""

    def define(self, g: Builder, x: Value) -> Value:
        width = self.intermediate_size
        h, gate = (g.linear(f"{name}_proj", x, width, bias=self.bias, axis="heads") for name in ("x", "gate"))
        (h,) = g.causal_conv(("x_conv1d",), (h,), kernel=self.conv_kernel, bias=self.conv_bias)
        sizes = {"dt_a": self.dt_rank, "b": self.state_size, "c": self.state_size}
        dt, b, c = (g.linear(f"{name}_proj", h, size) for name, size in sizes.items())
        if self.inner_norm:
            dt, b, c = (self.norm.define(g, f"{name}_norm", t) for name, t in (("dt", dt), ("b", b), ("c", c)))
        dt = g.linear("dt_b_proj", dt, width, axis="heads")
        scan = SelectiveScan(state_size=self.state_size, state_dtype=g.state_dtype)
        (o,) = g.emit(scan, (h, dt, b, c), name="selective_scan")
        return g.linear("out_proj", g.mul(o, g.activation(gate, "silu")), x.width, bias=self.bias)
