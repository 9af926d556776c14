"""Ops without weights that work element by element, or only move elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from archc.errors import GraphError
from archc.ir.op import Op, op
from archc.ir.piece import Piece
from archc.ir.tape import Held, Tape
from archc.ir.values import TensorType

ACTIVATIONS = ("silu", "sigmoid", "gelu", "gelu_tanh", "relu", "relu2", "tanh", "softplus", "elu_plus_one")
"""Names that ``activation`` knows; ``gelu`` is exact, ``relu2`` is relu squared, ``elu_plus_one`` e^x up to 0, x + 1 above."""


def _same(inputs: Sequence[TensorType], what: str) -> TensorType:
    """The common type of two operands; a trailing width of 1 and a constant (width,) are broadcast."""
    left, right = inputs
    if len(right.shape) == 1 < len(left.shape) and right.width == left.width and right.dtype == left.dtype:
        return left
    if left.shape[:-1] != right.shape[:-1] or (left.width != right.width and 1 not in (left.width, right.width)):
        raise GraphError(f"{what}: shapes {left} and {right} don't fit")
    if left.dtype != right.dtype:
        raise GraphError(f"{what}: operands are {left.dtype} and {right.dtype}; cast one of them")
    wide = left if left.width >= right.width else right
    if left.width == right.width and left.axis != right.axis:
        raise GraphError(f"{what}: operands are cut along different axes ({left.axis} and {right.axis})")
    return wide


def _wide_first(inputs: Sequence[Held]) -> tuple[Held, Held]:
    left, right = inputs
    return (left, right) if len(left.shape) >= len(right.shape) and left.width >= right.width else (right, left)


def activated(tape: Tape, function: str, x: Held) -> Held:
    """One of ``ACTIVATIONS`` on a tape, as the torch lowering runs it."""
    match function:
        case "sigmoid" | "tanh" | "relu":
            return tape.of_output(x)
        case "relu2":
            return tape.of_input(tape.of_output(x))
        case "elu_plus_one":
            return tape.add(tape.of_output(x), tape.of_output(tape.of_input(x)))
        case _:
            return tape.of_input(x)


def _soft_capped(tape: Tape, x: Held) -> Held:
    return tape.scaled(tape.of_output(tape.scaled(x)))


@op
class Add(Op):
    """Sum of two values of one shape and one axis."""

    op_name = "add"
    pieces = ()

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (_same(inputs, "add"),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.add(*_wide_first(inputs))


@op
class Mul(Op):
    """Product of two values of one shape; a width of 1 is broadcast."""

    op_name = "mul"
    pieces = ()

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (_same(inputs, "mul"),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.mul(*_wide_first(inputs))


@op
class Scale(Op):
    """Product with a number."""

    op_name = "scale"
    pieces = ()
    factor: float

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.scaled(inputs[0])


@op
class Activation(Op):
    """One of ``ACTIVATIONS``."""

    op_name = "activation"
    pieces = ()
    function: str

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if self.function not in ACTIVATIONS:
            raise GraphError(f"activation {self.function!r} is unknown; known: {', '.join(ACTIVATIONS)}")
        return (inputs[0],)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return activated(tape, self.function, inputs[0])


@op
class GatedActivation(Op):
    """``act(alpha gate) gate (up + up_offset)``, the middle of a gated feed-forward.

    With ``limit`` L the gate is at most L and up lies within [-L, L]. For ``silu`` this is
    ``gate sigmoid(alpha gate) (up + up_offset)``; ``alpha`` other than 1 is defined for ``silu`` only. ``situ`` is
    ``beta tanh(gate / beta) sigmoid(gate) up``, where up is ``linear_beta tanh(up / linear_beta)`` if there is one.
    """

    op_name = "gated_activation"
    pieces = ()
    function: str = "silu"
    limit: float | None = None
    alpha: float = 1.0
    up_offset: float = 0.0
    beta: float | None = None
    linear_beta: float | None = None

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if (self.function == "situ") is not (self.beta is not None):
            raise GraphError(f"gated_activation: beta is what situ has, and {self.function} has {self.beta}")
        if self.function == "situ":
            return (_same(inputs, "gated_activation"),)
        if self.function not in ACTIVATIONS or (self.alpha != 1.0 and self.function != "silu"):
            raise GraphError(f"gated_activation: {self.function!r} with alpha {self.alpha} is not defined")
        return (_same(inputs, "gated_activation"),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        gate, up = inputs
        if self.beta is not None:
            up = up if self.linear_beta is None else _soft_capped(tape, up)
            return tape.mul(tape.mul(_soft_capped(tape, gate), tape.of_output(gate)), up)
        if self.limit is not None:
            gate, up = tape.of_input(gate), tape.of_input(up)
        if self.up_offset:
            up = tape.scaled(up)
        if self.alpha != 1.0:
            return tape.mul(tape.mul(gate, tape.of_output(tape.scaled(gate))), up)
        return tape.mul(activated(tape, self.function, gate), up)


@op
class SoftCap(Op):
    """``cap tanh(x / cap)``."""

    op_name = "soft_cap"
    pieces = ()
    cap: float

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return _soft_capped(tape, inputs[0])


@op
class Cast(Op):
    """Another dtype, by torch's name; ``model`` is the model's own."""

    op_name = "cast"
    pieces = ()
    dtype: str

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType(inputs[0].shape, self.dtype, inputs[0].axis),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.cast(inputs[0], self.dtype)


@op
class Constant(Op):
    """Fixed numbers (width,) in float32: decays, slopes. Never a buffer: a buffer is garbage after a meta build."""

    op_name = "constant"
    values: tuple[float, ...]
    axis: str | None = None

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType((len(self.values),), "float32", self.axis),)

    def cut(self, piece: Piece, inputs: Sequence[TensorType]) -> Op:
        return replace(self, values=piece.of(self.values, self.axis))

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.new((len(self.values),), "float32", axis=self.axis)


@op
class Split(Op):
    """Pieces of the last dimension."""

    op_name = "split"
    sizes: tuple[int, ...]

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if sum(self.sizes) != inputs[0].width:
            raise GraphError(f"split: {self.sizes} don't add up to {inputs[0].width}")
        return tuple(inputs[0].with_width(size, inputs[0].axis) for size in self.sizes)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> tuple[Held, ...]:
        return tuple(tape.view(inputs[0], (*inputs[0].shape[:-1], size)) for size in self.sizes)


@op
class Concat(Op):
    """Values joined along the last dimension."""

    op_name = "concat"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if any(item.shape[:-1] != inputs[0].shape[:-1] for item in inputs):
            raise GraphError(f"concat: leading dimensions differ: {', '.join(str(item) for item in inputs)}")
        if any(item.axis != inputs[0].axis or item.dtype != inputs[0].dtype for item in inputs):
            raise GraphError(f"concat: axes or dtypes differ: {', '.join(str(item) for item in inputs)}")
        return (inputs[0].with_width(sum(item.width for item in inputs), inputs[0].axis),)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.cat(inputs, (*inputs[0].shape[:-1], sum(item.width for item in inputs)))
