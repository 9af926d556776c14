"""The contract of an op: a frozen dataclass whose fields are the attributes and whose methods say shapes and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

from archc.ir.piece import Piece
from archc.ir.size import Dim, product
from archc.ir.tape import Held, Tape
from archc.ir.values import Param, State, TensorType

Form = Literal["many", "few"]
"""``many``: prefill and training (MLA expanded, delta rule chunked); ``few``: decode (absorbed, recurrent)."""

Pairs = Literal["needed", "dense"]
"""``needed``: only query-key pairs that the mask lets through; ``dense``: the whole rectangle a masked matmul computes."""


Class = TypeVar("Class")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def op(cls: type[Class]) -> type[Class]:
    """``dataclass(frozen=True, slots=True, kw_only=True)`` for ops, which also works.

    ``Op`` brings the methods that dataclass would generate and compile for each class: half of the time to import them.
    """
    return dataclass(slots=True, kw_only=True, eq=False, repr=False)(cls)


class Op:
    """Base of all ops. Subclasses are frozen dataclasses with keyword-only fields, made by ``op``.

    ``op_name`` is the name under which lowerings are found (entry-point groups ``archc.torch`` and ``archc.onnx``).
    Parameter and state names that an op declares are relative to its leaf.
    """

    __slots__ = ()
    op_name: ClassVar[str]
    takes_step: ClassVar[bool] = False
    """Whether a backend hands it the step of a call over a cache although it keeps no state."""
    counts_padding: ClassVar[bool] = False
    """Whether what it gives a token depends on how many columns of padding stand beside it."""
    pieces: ClassVar[tuple[tuple[str, str], ...] | None] = None
    """(field, axis that it counts units of) of an op that works on pieces; None: it needs its inputs whole."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Each field is set once, by the constructor."""
        if hasattr(self, name):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        names = self._names()
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        known: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
        return tuple(known)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._names())

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Types of the outputs.

        Raises:
            GraphError: the inputs don't fit.
        """
        raise AssertionError(f"{type(self).__name__} must say its outputs")

    def params(self, inputs: Sequence[TensorType]) -> dict[str, Param]:
        """role -> weight, named relative to the leaf."""
        return {}

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        """role -> state, named relative to the leaf."""
        return {}

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        """Forward FLOPs of matrix-like work, multiply-add = 2; elementwise work counts nothing."""
        return 0

    def idle_roles(self, inputs: Sequence[TensorType]) -> tuple[str, ...]:
        """Weights that a model has and that can't change what it computes: kept because published files hold them."""
        return ()

    def units(self, inputs: Sequence[TensorType]) -> dict[str, int]:
        """Logical axis -> equal pieces along it that must stay whole when it is cut over ranks.

        By default those that fields of the usual names count: ``num_heads`` of heads and ``num_kv_heads`` of kv_heads.
        """
        fields = (("heads", "num_heads"), ("kv_heads", "num_kv_heads"))
        return {axis: getattr(self, name) for axis, name in fields if name in self._names()}

    def cut(self, piece: Piece, inputs: Sequence[TensorType]) -> Op | None:
        """The op that makes one rank's pieces of the outputs from its pieces of inputs and weights, cut at whole units.

        ``inputs`` are the rank's. None where there is no such op: then whole values are gathered, which is always right.
        """
        if self.pieces is None:
            return None
        axes = dict(self.pieces)
        return type(self)(
            **{
                each.name: piece.of(getattr(self, each.name), axes.get(each.name))
                for each in fields(self)  # type: ignore[arg-type]
            }
        )

    def cut_state(
        self, role: str, state: State, cut: Callable[[int, str | None], int], inputs: Sequence[TensorType]
    ) -> State:
        """The piece of a state that one rank keeps; ``cut`` gives the local size of a dimension from its size and axis."""

        def local(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(
                cut(dim, axis) if isinstance(dim, int) else dim for dim, axis in zip(shape, state.axes, strict=True)
            )

        return state.with_shapes(local(state.used), local(state.allocated))

    def empties_ring(self, role: str) -> bool:
        """Whether a ring is emptied after as many tokens as it has rows (a chunk), rather than let go of them one by one."""
        return False

    def active_elements(self, role: str, param: Param) -> int:
        """Elements of a weight that one token uses."""
        return param.elements

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Sequence[Held] | Held | None:
        """The torch lowering replayed on a tape of one training forward, so that it knows what backward keeps; the outputs.

        ``weights`` are by role, as ``params`` names them. None: this op can't say, and a report names it as left out.
        """
        return None

    def read_elements(self, role: str, state: State) -> Dim:
        """Elements of a state that a decode step reads; fewer than are used where it reads chosen rows only."""
        return product(state.used)
