"""Norms over the last dimension, or over each head of it. They are computed in float32 and return the input's dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from archc.errors import GraphError
from archc.ir.op import Op, op
from archc.ir.piece import Piece
from archc.ir.size import product
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, TensorType
from archc.ops.elementwise import activated


def _check_heads(op: str, kind: TensorType, head_dim: int | None) -> int:
    dim = head_dim or kind.width
    if kind.width % dim:
        raise GraphError(f"{op}: width {kind.width} is no multiple of head_dim {dim}")
    return dim


def rms(tape: Tape, x: Held, weight: Held | None, head_dim: int | None) -> Held:
    """RMS norm of x, or of each head of it, on a tape: in float32, and back."""
    rows = product(x.shape[:-1]) * (x.width // (head_dim or x.width))
    if x.dtype in ("float32", "float64"):
        return tape.rms_norm(x, weight, rows)
    y = tape.cast(tape.rms_norm(tape.cast(x, "float32"), None, rows), x.dtype)
    return y if weight is None else tape.mul(y, weight)


@op
class RMSNorm(Op):
    """``x / sqrt(mean x^2 + eps) (weight_offset + w)``, over ``head_dim`` channels where given (arXiv 1910.07467)."""

    op_name = "rms_norm"
    eps: float
    weight_offset: float = 0.0
    head_dim: int | None = None
    weight: bool = True

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        _check_heads(self.op_name, inputs[0], self.head_dim)
        return (inputs[0],)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        if not self.weight:
            return {}
        axis = None if self.head_dim else inputs[0].axis
        init = "ones" if self.weight_offset == 0.0 else "zeros"
        return {"weight": Param("weight", (self.head_dim or inputs[0].width,), axes=(axis,), init=init)}

    def cut(self, piece: Piece, inputs: Sequence[TensorType]) -> Op | None:
        """Heads are normed one by one; a norm over the whole width needs all of it."""
        return None if self.head_dim is None else self

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        weight = weights.get("weight")
        if weight is not None and self.weight_offset != 0.0:
            weight = tape.scaled(weight)
        return rms(tape, inputs[0], weight, self.head_dim)


@op
class LayerNorm(Op):
    """``w (x - mean x) / sqrt(var x + eps) + b``, over ``head_dim`` channels where given (arXiv 1607.06450)."""

    op_name = "layer_norm"
    eps: float
    bias: bool = True
    head_dim: int | None = None

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        _check_heads(self.op_name, inputs[0], self.head_dim)
        return (inputs[0],)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        shape, axes = (self.head_dim or inputs[0].width,), (None if self.head_dim else inputs[0].axis,)
        params = {"weight": Param("weight", shape, axes=axes, init="ones")}
        return params | {"bias": Param("bias", shape, axes=axes, init="zeros")} if self.bias else params

    def cut(self, piece: Piece, inputs: Sequence[TensorType]) -> Op | None:
        """Heads are normed one by one; a norm over the whole width needs all of it."""
        return None if self.head_dim is None else self

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x = inputs[0]
        rows = product(x.shape[:-1]) * (x.width // (self.head_dim or x.width))
        return tape.layer_norm(x, weights["weight"], rows)


@op
class GatedNorm(Op):
    """``rms_norm(x) w act(gate)`` a head, the output of a linear mixer; inputs (x, gate)."""

    op_name = "gated_norm"
    pieces = ()
    eps: float
    head_dim: int
    function: str = "sigmoid"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].shape != inputs[1].shape:
            raise GraphError(f"gated_norm: {inputs[0]} and its gate {inputs[1]} differ")
        _check_heads(self.op_name, inputs[0], self.head_dim)
        return (inputs[0],)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return {"weight": Param("weight", (self.head_dim,), init="ones")}

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x, gate = inputs
        return tape.mul(rms(tape, x, weights["weight"], self.head_dim), activated(tape, self.function, gate))


@op
class GatedGroupNorm(Op):
    """``rms_norm(x act(gate)) w``, each of ``groups`` slices by its own mean square; the output of Mamba-2. Inputs (x, gate)."""

    op_name = "gated_group_norm"
    eps: float
    groups: int = 1
    function: str = "silu"

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].shape != inputs[1].shape:
            raise GraphError(f"gated_group_norm: {inputs[0]} and its gate {inputs[1]} differ")
        if self.groups < 1 or inputs[0].width % self.groups:
            raise GraphError(f"gated_group_norm: width {inputs[0].width} is no multiple of {self.groups} groups")
        return (inputs[0],)

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        return {"weight": Param("weight", (inputs[0].width,), axes=(inputs[0].axis,), init="ones")}

    def cut(self, piece: Piece, inputs: Sequence[TensorType]) -> Op | None:
        ways = piece.count(inputs[0].axis)
        return None if self.groups % ways else replace(self, groups=self.groups // ways)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x, gate = (tape.wide(each) for each in inputs)
        y = rms(tape, tape.mul(x, activated(tape, self.function, gate)), None, x.width // self.groups)
        return tape.mul(tape.cast(y, inputs[0].dtype), weights["weight"])


@op
class L2Norm(Op):
    """``x / sqrt(sum x^2 + eps)`` a head."""

    op_name = "l2_norm"
    pieces = ()
    head_dim: int
    eps: float = 1e-6

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        _check_heads(self.op_name, inputs[0], self.head_dim)
        return (inputs[0],)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        return tape.scaled(rms(tape, inputs[0], None, self.head_dim))
