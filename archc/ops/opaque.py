"""The escape hatch: a user's own torch module, with what archc can't see in it declared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import Dim
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType

Plain = str | int | float | bool | tuple["Plain", ...] | None
"""What a keyword of a module may be: it is written into lockfiles and compared."""

_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Weight:
    """A declared weight, named relative to the module; as ``Param``, but compared by its contents."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: str
    dtype: str
    trainable: bool


@op
class Opaque(Op):
    """``module`` (``package.file:Class``), built with ``keywords``, over the inputs; (…, width) in the first one's dtype.

    It keeps no state between calls, so a token's output may depend on that token alone: what mixes tokens needs an op.
    ``work`` are its FLOPs by ``batch`` and ``seq``, however the tokens are cut into calls. ``activations`` are the numbers in the
    model's dtype that its forward keeps for backward beside its inputs, which count as kept, and ``products`` those that
    its matrix products write; where ``activations`` is None, nobody has said.
    """

    op_name = "opaque"
    module: str
    width: int
    weights: tuple[Weight, ...] = ()
    work: Dim = 0
    keywords: tuple[tuple[str, Plain], ...] = ()
    axis: str | None = None
    activations: Dim | None = None
    products: Dim = 0

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if not _PLACE.fullmatch(self.module):
            raise GraphError(f"opaque: module should be package.file:Class (found {self.module!r})")
        if not inputs:
            raise GraphError(f"opaque: {self.module} gets no input")
        if self.width < 1:
            raise GraphError(f"opaque: the width of {self.module} should be positive (found {self.width})")
        names = [weight.name for weight in self.weights]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise GraphError(f"opaque: {self.module} declares {', '.join(doubled)} twice")
        for name, value in self.keywords:
            if not _is_plain(value):
                raise GraphError(
                    f"opaque: keyword {name} of {self.module} should be text, a number, a switch or a list of them "
                    f"(found {type(value).__name__})"
                )
        return (inputs[0].with_width(self.width, self.axis),)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return {
            each.name: Param(
                each.name, each.shape, axes=each.axes, init=each.init, dtype=each.dtype, trainable=each.trainable
            )
            for each in self.weights
        }

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return self.work

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held | None:
        if self.activations is None:
            return None
        x = inputs[0]
        tape.product(tape.new((self.products,), x.dtype, axis=self.axis))
        kept = tape.new((self.activations,), x.dtype, axis=self.axis)
        return tape.fresh(inputs, (*x.shape[:-1], self.width), keeps=(*inputs, kept), axis=self.axis, needs_grad=True)


def lowering_name(module: str) -> str:
    """The entry point under which a class brings its lowering to a target: its place with a dot for the colon."""
    return module.replace(":", ".")


def weight_of(param: Param) -> Weight:
    """The declaration in a parameter."""
    return Weight(param.name, param.shape, param.axes, param.init, param.dtype, param.trainable)


def plain_of(value: Any) -> Plain:
    """A keyword with lists as tuples; what is no plain value stays, to be refused with its name."""
    return tuple(map(plain_of, cast("Iterable[Any]", value))) if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, cast("tuple[Any, ...]", value)))
    return value is None or isinstance(value, str | int | float | bool)
