"""The contract of an op: a frozen dataclass whose fields are the attributes and whose methods say shapes and costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from archc.ir.size import Dim
from archc.ir.values import Param, State, TensorType

Form = Literal["many", "few"]
"""``many``: prefill and training (MLA expanded, delta rule chunked); ``few``: decode (absorbed, recurrent)."""

Pairs = Literal["needed", "dense"]
"""``needed``: only query-key pairs that the mask lets through; ``dense``: the whole rectangle a masked matmul computes."""


class Op:
    """Base of all ops. Subclasses are frozen dataclasses with keyword-only fields.

    ``op_name`` is the name under which lowerings are found (entry-point groups ``archc.torch`` and ``archc.onnx``).
    Parameter and state names that an op declares are relative to its leaf.
    """

    __slots__ = ()
    op_name: ClassVar[str]

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

    def active_elements(self, role: str, param: Param) -> int:
        """Elements of a weight that one token uses."""
        return param.elements
