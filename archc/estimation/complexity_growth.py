"""How a closed form grows with n: its exponent, measured between two huge lengths, and the bounds that multiply it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from archc.estimation.complexity_costs import cache_bytes, flops_of, nodes_of
from archc.ir.op import Op
from archc.ir.size import Dim, evaluate
from archc.ir.values import Body, Node

FAR = 1 << 64
"""Tokens beyond every window, chunk and width."""
DOUBLINGS = 512
"""The exponent is the mean over so many doublings of n: a cost that swings inside a chunk weighs nothing in it."""

BOUNDS = {"window": "w", "chunk": "c", "topk": "k", "num_rows": "k", "num_global": "g"}
"""Fields of ops that bound, in tokens, what a token reads, and the letter that stands for each; several add up."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Grows as n^exponent, times the sum of the bounds, which are by letter; None where there is nothing that could grow."""

    exponent: float | None = None
    bounds: dict[str, int] = field(default_factory=dict[str, int])

    def __str__(self) -> str:
        if self.exponent is None:
            return "-"
        power = [] if self.exponent == 0 else ["n" if self.exponent == 1 else f"n^{self.exponent:g}"]
        bound = "+".join(self.bounds)
        factors = power + ([f"({bound})" if power and len(self.bounds) > 1 else bound] if bound else [])
        return f"O({'·'.join(factors) or 1})"

    def to_json(self) -> dict[str, Any]:
        """The text, the exponent, and the bounds in tokens."""
        return {"text": str(self), "exponent": self.exponent, "bounds_tokens": self.bounds}


def exponent(form: Dim) -> float | None:
    """b where a closed form grows as n^b for one sequence; None where it is 0 throughout."""
    near, far = (abs(evaluate(form, {"batch": 1, "n": n})) for n in (FAR, FAR << DOUBLINGS))
    if far == 0:
        return None
    found = (far.bit_length() - near.bit_length()) / DOUBLINGS
    # Whole numbers, up to what lower terms and the swing of chunks leave.
    return round(found) if abs(found - round(found)) < 1 / 8 else round(found, 2)


def flops_growth(body: Body, total: Dim, step: str) -> Growth:
    """Growth of a body's FLOPs in one step, whose sum is given."""
    return _growth(body, total, lambda op, node: flops_of(op, node, step))


def cache_growth(body: Body, total: Dim, dtype: str) -> Growth:
    """Growth of what a body keeps, whose sum is given."""
    return _growth(body, total, lambda op, node: cache_bytes(op, node, dtype))


def bounds_of(op: Op) -> Iterator[tuple[str, str, int]]:
    """(field, letter, tokens) of every bound that an op states."""
    for name in (one.name for one in fields(cast("Any", op)) if one.name in BOUNDS):
        value = getattr(op, name)
        if isinstance(value, int) and not isinstance(value, bool):
            yield name, BOUNDS[name], value


def _growth(body: Body, total: Dim, cost: Callable[[Op, Node], Dim]) -> Growth:
    """A bound multiplies the growth where a body with twice the bound grows by something of the same order."""
    order = exponent(total)
    bounds: dict[str, int] = {}
    if order is None:
        return Growth()
    for node in nodes_of(body):
        for name, letter, tokens in bounds_of(node.op):
            wider = cast("Op", replace(cast("Any", node.op), **{name: 2 * tokens}))
            if exponent(cost(wider, node) - cost(node.op, node)) == order:
                bounds[letter] = max(tokens, bounds.get(letter, 0))
    return Growth(order, bounds)
