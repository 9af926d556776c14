"""Positive orthogonal random features, FAVOR+ (arXiv 2009.14794), and the directions that they are made of."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import mul

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, Dim
from archc.ir.tape import Held, Tape
from archc.ir.values import TensorType

MAX_EXPONENT = 60.0
"""Of a key's feature: e^60 leaves room for a sum over as many keys as there may be, in float32."""


@op
class RandomFeatures(Op):
    """Features of each head whose products stand for e^(scale q.k) on average over their directions w, (batch, seq, heads x m).

    With y = sqrt(scale) x: ``softmax_i(w_i.y)`` of a query, ``e^(w_i.y - |y|^2/2 - c)`` of a key. What a query's lack, its factor
    e^(-|y|^2/2) over the sum, is the same for all keys, and c for all of the model, so a quotient of sums does not know of
    them; c keeps every exponent below ``MAX_EXPONENT``. The m directions are numbers that ``directions`` makes of the seed,
    the same for all heads. Computed in float32 whatever the model's dtype.
    """

    op_name = "random_features"
    pieces = ()
    head_dim: int
    num_features: int
    seed: int
    scale: float
    of: str
    """``query`` or ``key``."""

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = inputs[0]
        if x.width % self.head_dim or self.of not in ("query", "key"):
            raise GraphError(f"random_features: {self} doesn't fit {x}")
        return (TensorType((*x.shape[:-1], x.width // self.head_dim * self.num_features), "float32", x.axis),)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        return BATCH * inputs[0].shape[1] * (2 * inputs[0].width * self.num_features)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        x = inputs[0]
        batch, seq, _ = x.shape
        leading = (batch, seq, x.width // self.head_dim)
        y = tape.scaled(tape.view(tape.wide(x), (*leading, self.head_dim)))
        key = ("directions", self.num_features, self.head_dim, self.seed, y.dtype)
        met = tape.matmul(
            y, tape.shared_constant(key, (self.head_dim, self.num_features), y.dtype), (*leading, self.num_features)
        )
        if self.of == "key":
            met = tape.add(met, tape.sum(tape.of_input(y), (*leading, 1)))
        return tape.view(tape.of_output(met), (batch, seq, leading[2] * self.num_features))

    def directions(self) -> tuple[tuple[float, ...], ...]:
        """The w_i, ``num_features`` of ``head_dim`` numbers."""
        return directions(self.num_features, self.head_dim, self.seed)

    def shift(self) -> float:
        """The c that no exponent w.y - |y|^2/2, at most |w|^2/2, exceeds by more than ``MAX_EXPONENT``."""
        longest = max(_dot(row, row) for row in self.directions())
        return max(0.0, longest / 2 - MAX_EXPONENT)


@lru_cache(maxsize=16)
def directions(count: int, width: int, seed: int) -> tuple[tuple[float, ...], ...]:
    """``count`` rows as long as rows of ``width`` standard normal numbers are, ``width`` at a time orthogonal to each other.

    Each row alone is distributed as a row of normal numbers, which keeps the features unbiased. The same numbers on every
    machine: drawn by the Mersenne twister, turned by Gram and Schmidt's method in double precision.
    """
    draw = random.Random(seed)
    rows: list[tuple[float, ...]] = []
    while len(rows) < count:
        block: list[list[float]] = []
        for _ in range(min(width, count - len(rows))):
            row = _normal(draw, width)
            for other in block:
                along = _dot(row, other)
                row = [x - along * y for x, y in zip(row, other, strict=True)]
            length = math.sqrt(_dot(row, row))
            block.append([x / length for x in row])
        for row in block:
            drawn = _normal(draw, width)
            length = math.sqrt(_dot(drawn, drawn))
            rows.append(tuple(x * length for x in row))
    return tuple(rows)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(map(mul, left, right))


def _normal(draw: random.Random, count: int) -> list[float]:
    """Standard normal numbers by Box and Muller's method, a pair of uniform ones each."""
    return [
        math.sqrt(-2.0 * math.log(1.0 - draw.random())) * math.cos(2.0 * math.pi * draw.random()) for _ in range(count)
    ]
