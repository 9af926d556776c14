"""The kind that a spec names."""

from __future__ import annotations

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc_shift.op import Shift


class TokenShift(Mixer):
    """Each token sees the one before it (RWKV, arXiv 2305.13048)."""

    bias: bool = False

    def define(self, g: Builder, x: Value) -> Value:
        (y,) = g.emit(Shift(cache_dtype=g.cache_dtype), (x,), name="shift")
        return g.linear("o_proj", y, x.width, bias=self.bias)
