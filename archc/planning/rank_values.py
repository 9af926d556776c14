"""A value of the whole graph on one rank, and the op that makes a rank's pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archc.errors import GraphError
from archc.ir.op import Op
from archc.ir.piece import Piece
from archc.ir.size import Dim
from archc.ir.values import Body, Node, TensorType, Value
from archc.planning.timing.forms import CUT_AXES


@dataclass(frozen=True, slots=True)
class Local:
    """A value of the whole graph on a rank. ``learned``: a gradient goes through it."""

    value: Value
    whole: TensorType
    is_part: bool
    learned: bool

    @property
    def cut_dim(self) -> int | None:
        """The dimension in which the rank has a piece."""
        pairs = enumerate(zip(self.value.shape, self.whole.shape, strict=True))
        return next((dim for dim, (here, there) in pairs if here != there), None)


@dataclass(frozen=True, slots=True)
class CutBody:
    """``entered``: inputs that the caller should let enter; ``parts``, ``learned``: of its outputs."""

    body: Body
    entered: tuple[bool, ...]
    parts: tuple[bool, ...]
    learned: tuple[bool, ...]


def piece_op(node: Node, piece: Piece, types: Sequence[TensorType]) -> tuple[Op, tuple[TensorType, ...]] | None:
    """The op on pieces with its outputs' types, where it makes of such inputs the pieces that are wanted."""
    op = node.op.cut(piece, types)
    if op is None:
        return None
    try:
        outs = op.infer(types)
    except GraphError:
        return None
    for kind, value in zip(outs, node.outputs, strict=True):
        wanted: Dim = value.shape[-1]
        if value.axis in CUT_AXES:
            wanted = piece.of(wanted, value.axis)
        if kind.axis != value.axis or kind.shape[-1] != wanted:
            return None
    return op, outs


def is_whole_number(dtype: str) -> bool:
    """Whether no gradient goes through values of a dtype."""
    return dtype.startswith(("int", "uint", "bool"))
