"""Performer's attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.random_features import RandomFeatures
from archc.spec.values import Scale
from archc_plugins.mixer.linear import by_features

EPS = 1e-30
"""Added to the sum that divides, so that a row that saw nothing is 0: less than any sum that means something."""

MAX_NUMBERS = 1 << 17
"""Of one set of directions, which are made one by one: 1,024 features of 128 channels take seconds."""


class Performer(Mixer):
    """FAVOR+ of Performers, arXiv 2009.14794: softmax attention, approximated by positive orthogonal random features.

    ``e^(q.k) = E_w[e^(w.q - |q|^2/2) e^(w.k - |k|^2/2)]`` with normal w; the mean over num_features of them turns attention into
    sums over keys. All layers have the same directions, drawn from the seed; the paper redraws them while it trains. State a
    layer: heads x num_features x (head_dim + 1), fixed; none in a bidirectional stack.
    """

    masks: ClassVar[tuple[str, ...]] = ("causal", "bidirectional")
    keeps_rows: ClassVar[bool] = False
    refuses_slopes: ClassVar[bool] = True

    num_heads: PositiveInt
    """Heads."""
    head_dim: PositiveInt
    """Channels of a query, key and value head."""
    num_features: PositiveInt
    """Random features of a query or key: the error falls with their root."""
    seed: Annotated[int, Field(ge=0)] = 0
    """What the directions are drawn from."""
    softmax_scale: Scale | None = None
    """Factor on the scores. Default: 1/sqrt(head_dim)."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    o_bias: bool = False
    """Bias on the output projection."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.num_features * self.head_dim > MAX_NUMBERS:
            most = MAX_NUMBERS // self.head_dim
            yield (
                "num_features",
                f"should be at most {most:,} with heads of {self.head_dim} (found {self.num_features:,})",
            )

    def define(self, g: Builder, x: Value) -> Value:
        width = self.num_heads * self.head_dim
        q, k, v = (g.linear(f"{n}_proj", x, width, bias=self.qkv_bias, axis="heads") for n in "qkv")
        q, k = (self.position.rotate(g, each, head_dim=self.head_dim) for each in (q, k))
        names = {**self.numbers(), "hidden_size": x.width}
        scale = self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale.resolve(names)

        def features(each: Value, of: str) -> Value:
            op = RandomFeatures(
                head_dim=self.head_dim, num_features=self.num_features, seed=self.seed, scale=scale, of=of
            )
            return g.emit(op, (each,))[0]

        o = by_features(g, features(q, "query"), features(k, "key"), v, num_heads=self.num_heads, eps=EPS)
        return g.linear("o_proj", o, x.width, bias=self.o_bias)
