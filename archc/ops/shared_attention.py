"""Softmax attention over the keys and values of an earlier layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from archc.errors import GraphError
from archc.ir.op import op
from archc.ir.tape import Held, Tape
from archc.ir.values import State, TensorType
from archc.ops.attention import Attention
from archc.ops.softmax import to_heads


@op
class SharedAttention(Attention):
    """``Attention`` of queries over rows that another layer keeps (YOCO, arXiv 2405.05254; CLA, arXiv 2405.12981).

    Inputs (q, keys, values), the rows as that layer's ``Attention`` with ``shares`` gives them, then the length of a prefix or
    the bias where it has one. It keeps nothing; window, chunk and sink tokens are those of the layer that does.
    """

    op_name = "shared_attention"
    takes_step: ClassVar[bool] = True

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        q, *rows = inputs[:3]
        if q.width != self.num_heads * self.key_dim or self.num_heads % self.num_kv_heads:
            raise GraphError(
                f"shared_attention: queries {q.width} wide are not {self.num_heads} heads of {self.key_dim} over "
                f"{self.num_kv_heads} key-value heads"
            )
        want = self.shared_rows(q.dtype)
        if [row.key() for row in rows] != [row.key() for row in want]:
            raise GraphError(f"shared_attention: the rows are {rows[0]} and {rows[1]}, not {want[0]} and {want[1]}")
        return (q.with_width(self.num_heads * self.value_dim, "heads"),)

    def states(self, inputs: Sequence[TensorType]) -> dict[str, State]:
        return {}

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        q, k, v, *further = inputs
        return self.saves_of_rows(tape, to_heads(tape, q, self.key_dim), k, v, further, weights)
