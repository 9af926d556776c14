"""From logits to the next id: greedy, or by chance after temperature, top k and top p, in this order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archc.errors import ArchcError
from archc_exporters.runtime.buffers import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an id is drawn.

    Attributes:
        temperature: divides the logits; 0 takes the largest, the lowest id among equals.
        top_k: so many of the likeliest ids are kept; 0 keeps all.
        top_p: of those, the likeliest whose probabilities together reach it; 1 keeps all.
        seed: of the draws. Each row has its own, so that what a prompt gives does not depend on its neighbours.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, legal, text in (
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("seed", self.seed, self.seed >= 0, "0 or more"),
        ):
            if not legal:
                raise ArchcError(f"{name} should be {text} (found {value})")

    def generators(self, rows: int) -> list[np.random.Generator]:
        """A source of chance for each row."""
        return [np.random.default_rng([self.seed, row]) for row in range(rows)]


def choose(logits: Array, sampling: Sampling, generators: list[np.random.Generator]) -> Array:
    """The next id of each row, int64 (rows,), from logits (rows, vocab_size) of any dtype."""
    numbers = logits.astype(np.float32, copy=False)
    if sampling.temperature == 0:
        return numbers.argmax(-1)
    return np.array([draw(row, sampling, generator) for row, generator in zip(numbers, generators, strict=True)])


def draw(logits: Array, sampling: Sampling, generator: np.random.Generator) -> int:
    """One id from logits (vocab_size,)."""
    ids, shares = kept(logits, sampling)
    # The first id whose cumulated share is beyond a number below the sum: a share of 0 is never hit.
    sums = shares.cumsum()
    return int(ids[sums.searchsorted(generator.random() * sums[-1], side="right")])


def kept(logits: Array, sampling: Sampling) -> tuple[Array, Array]:
    """(ids that can be drawn, likeliest first; their probabilities before the others were dropped, float64)."""
    if 0 < sampling.top_k < logits.size:
        ids = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
    else:
        ids = np.arange(logits.size)
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    scaled = logits[ids].astype(np.float64) / sampling.temperature
    shares = np.exp(scaled - scaled[0])
    shares /= shares.sum()
    if sampling.top_p < 1:
        # Enough is what the ids before one have together; the likeliest always stays.
        before = shares.cumsum() - shares
        count = max(1, int((before < sampling.top_p).sum()))
        ids, shares = ids[:count], shares[:count]
    return ids, shares
