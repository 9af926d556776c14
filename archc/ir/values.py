"""What a graph is made of: values, parameters, states, nodes, and the bodies of scopes that call each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from archc.ir.size import Dim

if TYPE_CHECKING:
    from archc.ir.op import Op

Role = Literal["kv", "convolution", "recurrent"]
Growth = Literal["append", "ring", "fixed", "source"]
"""``source``: a row a token of the encoder, written when that is run."""
DISTINCT = "distinct below "
"""Begins the initialiser of integers of which a row has none twice; the number that all are below ends it."""
MODEL_DTYPE = "model"
"""dtype of a value, parameter or state that follows the model's dtype."""


class TensorType:
    """Shape, dtype and the logical axis of the last dimension.

    ``axis`` is one of ``heads``, ``kv_heads``, ``ffn``, ``experts``, ``vocab``, or None when the dimension can't be cut.
    """

    __slots__ = ("axis", "dtype", "shape")

    def __init__(self, shape: tuple[Dim, ...], dtype: str = MODEL_DTYPE, axis: str | None = None) -> None:
        self.shape, self.dtype, self.axis = shape, dtype, axis

    @property
    def width(self) -> int:
        """Size of the last dimension, which is always a number."""
        last = self.shape[-1]
        assert isinstance(last, int), f"the last dimension of {self} is symbolic"
        return last

    def with_width(self, width: int, axis: str | None = None) -> TensorType:
        """The same leading dimensions and dtype, another last dimension."""
        return TensorType((*self.shape[:-1], width), self.dtype, axis)

    def key(self) -> tuple[object, ...]:
        """What makes two types equal."""
        return (self.shape, self.dtype, self.axis)

    def __repr__(self) -> str:
        axis = f", {self.axis}" if self.axis else ""
        return f"{self.dtype}[{', '.join(str(d) for d in self.shape)}{axis}]"


class Value:
    """One tensor of a body. It belongs to the body in which it was made and is used in others through their inputs."""

    __slots__ = ("home", "number", "type")

    def __init__(self, home: Body, number: int, kind: TensorType) -> None:
        self.home, self.number, self.type = home, number, kind

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def axis(self) -> str | None:
        """Logical axis of the last dimension."""
        return self.type.axis

    @property
    def width(self) -> int:
        """Size of the last dimension."""
        return self.type.width

    def __repr__(self) -> str:
        return f"%{self.number}: {self.type}"


class Param:
    """A weight. ``name`` is relative to the body that holds it; the prefix of the call completes it to the state_dict key.

    ``axes`` has one logical axis or None a dimension; ``dtype`` is ``model`` or a fixed dtype; an untrainable one
    becomes a persistent buffer: saved and counted in weight bytes, not in the parameter total.
    """

    __slots__ = ("axes", "dtype", "init", "name", "shape", "trainable")

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        axes: tuple[str | None, ...] | None = None,
        init: str = "normal",
        dtype: str = MODEL_DTYPE,
        trainable: bool = True,
    ) -> None:
        self.name, self.shape, self.init, self.dtype, self.trainable = name, shape, init, dtype, trainable
        self.axes = axes if axes is not None else (None,) * len(shape)
        assert len(self.axes) == len(shape), f"{name}: {len(shape)} dimensions, {len(self.axes)} axes"

    @property
    def elements(self) -> int:
        total = 1
        for dim in self.shape:
            total *= dim
        return total

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)}"


class State:
    """What a layer keeps between calls.

    ``used`` is what the formula needs after this call, ``allocated`` what a runtime holds; ``role`` says which dtype of
    the cache policy it follows; ``dtype`` is ``model`` or a fixed dtype; ``token_dim`` is the dimension that counts
    tokens (None for a fixed state); ``reserved`` rows of the capacity are no token's (a sink row).
    """

    __slots__ = ("allocated", "axes", "dtype", "growth", "name", "reserved", "role", "token_dim", "used")

    def __init__(
        self,
        name: str,
        used: tuple[Dim, ...],
        allocated: tuple[Dim, ...],
        *,
        growth: Growth,
        role: Role,
        dtype: str = MODEL_DTYPE,
        axes: tuple[str | None, ...] | None = None,
        token_dim: int | None = None,
        reserved: int = 0,
    ) -> None:
        self.name, self.used, self.allocated = name, used, allocated
        self.growth: Growth = growth
        self.role: Role = role
        self.dtype, self.token_dim, self.reserved = dtype, token_dim, reserved
        self.axes = axes if axes is not None else (None,) * len(used)

    def with_shapes(self, used: tuple[Dim, ...], allocated: tuple[Dim, ...]) -> State:
        """The same state in other shapes."""
        return State(
            self.name,
            used,
            allocated,
            growth=self.growth,
            role=self.role,
            dtype=self.dtype,
            axes=self.axes,
            token_dim=self.token_dim,
            reserved=self.reserved,
        )

    def __repr__(self) -> str:
        return f"{self.name}[{', '.join(str(d) for d in self.used)}] {self.growth}"


class Node:
    """One op placed in a body. ``name`` is empty for elementwise ops, which have no module and no weights."""

    __slots__ = ("inputs", "name", "op", "outputs", "params", "states")

    def __init__(
        self,
        op: Op,
        name: str,
        inputs: tuple[Value, ...],
        outputs: tuple[Value, ...],
        params: dict[str, Param],
        states: dict[str, State],
    ) -> None:
        self.op, self.name, self.inputs, self.outputs, self.params, self.states = (
            op,
            name,
            inputs,
            outputs,
            params,
            states,
        )

    def __repr__(self) -> str:
        return f"{self.name or '-'}: {self.op.op_name}({', '.join(f'%{v.number}' for v in self.inputs)})"


class Call:
    """One entry of a scope: ``layers.3`` calls the body that all equal layers share."""

    __slots__ = ("body", "inputs", "name", "outputs")

    def __init__(self, name: str, body: Body, inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> None:
        self.name, self.body, self.inputs, self.outputs = name, body, inputs, outputs

    def __repr__(self) -> str:
        return f"{self.name}: call {self.body.label}({', '.join(f'%{v.number}' for v in self.inputs)})"


class Body:
    """The traced contents of a scope: inputs, items in order, outputs. ``label`` is what a table calls it (``kda``)."""

    __slots__ = ("inputs", "items", "label", "outputs", "part")

    def __init__(self, label: str, part: str = "") -> None:
        self.label, self.part = label, part
        self.inputs: list[Value] = []
        self.items: list[Node | Call] = []
        self.outputs: list[Value] = []

    def nodes(self) -> Iterator[Node]:
        """Nodes placed directly in this body."""
        return (item for item in self.items if isinstance(item, Node))

    def calls(self) -> Iterator[Call]:
        """Scopes entered directly from this body."""
        return (item for item in self.items if isinstance(item, Call))

    def states(self) -> list[tuple[str, State]]:
        """(path relative to this body, state) of everything below, in order of execution."""
        return self._states({})

    def _states(self, known: dict[Body, list[tuple[str, State]]]) -> list[tuple[str, State]]:
        """The same; a body that many layers share is read once."""
        found = known.get(self)
        if found is None:
            found = known[self] = []
            for item in self.items:
                if isinstance(item, Node):
                    found += [(state.name, state) for state in item.states.values()]
                else:
                    found += [(f"{item.name}.{path}", state) for path, state in item.body._states(known)]
        return found

    def __repr__(self) -> str:
        return f"Body({self.label}, {len(self.items)} items)"
