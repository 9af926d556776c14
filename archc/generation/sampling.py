"""From logits to the next id: a penalty on ids seen, then the likeliest or a draw after temperature, top k, top p, min p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from archc.errors import ArchcError

Array = np.ndarray[Any, Any]
Seed = int | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an id is drawn, in the order of transformers' processors.

    Attributes:
        repetition_penalty: divides the positive logits of ids that the row has, prompt included, and multiplies its negative
            ones (CTRL, arXiv 1909.05858); 1 changes nothing.
        temperature: divides the logits; 0 takes the largest, the lowest id among equals.
        top_k: so many of the likeliest ids are kept; 0 keeps all.
        top_p: of those, the likeliest whose probabilities together reach it; 1 keeps all.
        min_p: of those, the ones with at least this share of the likeliest one's probability (arXiv 2407.01082); 0 keeps all.
        seed: of the draws. Each row has its own source, so that what a prompt gives does not depend on its neighbours: row r
            draws from (seed, r), or from the r-th of several seeds.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | Sequence[Seed] = 0

    def __post_init__(self) -> None:
        penalty = self.repetition_penalty
        for name, value, legal, text in (
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1"),
            ("repetition_penalty", penalty, 0 < penalty < float("inf"), "above 0"),
            ("seed", self.seed, all(part >= 0 for part in _numbers(self.seed)), "0 or more"),
        ):
            if not legal:
                raise ArchcError(f"{name} should be {text} (found {value})")

    @property
    def is_argmax(self) -> bool:
        """Whether the next id is that of the largest logit, whatever came before."""
        return self.temperature == 0 and self.repetition_penalty == 1

    def generators(self, rows: int) -> list[np.random.Generator]:
        """A source of chance for each row.

        Raises:
            ArchcError: there are several seeds, and not one a row.
        """
        if isinstance(self.seed, int):
            return [np.random.default_rng([self.seed, row]) for row in range(rows)]
        if len(self.seed) != rows:
            raise ArchcError(
                f"seed should be one number, or one for each of the {rows} prompts (found {len(self.seed)})"
            )
        return [np.random.default_rng(one) for one in self.seed]


class Sampler:
    """Draws for the rows of one batch, and remembers what each row has where a penalty asks for it.

    ``vocab_size`` is the number of ids: logits beyond belong to rows that pad a table, and are never drawn.
    """

    def __init__(self, sampling: Sampling, prompts: Sequence[Sequence[int]], *, vocab_size: int) -> None:
        self._sampling, self._size = sampling, vocab_size
        self._generators = sampling.generators(len(prompts))
        self._seen: Array | None = None
        if sampling.repetition_penalty != 1:
            self._seen = np.zeros((len(prompts), vocab_size), bool)
            for row, prompt in enumerate(prompts):
                self._seen[row, np.asarray(prompt)] = True

    def draw(self, logits: Array) -> Array:
        """The next id of each row, int64 (rows,), from logits (rows, vocab_size or more) of any dtype."""
        numbers = logits[:, : self._size].astype(np.float32, copy=False)
        if self._seen is not None:
            numbers = penalised(numbers, self._seen, self._sampling.repetition_penalty)
        drawn = choose(numbers, self._sampling, self._generators)
        if self._seen is not None:
            self._seen[np.arange(len(drawn)), drawn] = True
        return drawn


def penalised(logits: Array, seen: Array, penalty: float) -> Array:
    """Logits (rows, vocab_size) with those of ``seen`` (same shape, bool) made smaller by a penalty above 1."""
    return np.where(seen, np.where(logits < 0, logits * penalty, logits / penalty), logits).astype(
        np.float32, copy=False
    )


def choose(logits: Array, sampling: Sampling, generators: list[np.random.Generator]) -> Array:
    """The next id of each row, int64 (rows,), from logits (rows, vocab_size) of any dtype; a penalty was applied before."""
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
    """(ids that can be drawn, likeliest first; their probabilities before top p and min p dropped the others, float64)."""
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
        ids, shares = _first(ids, shares, before < sampling.top_p)
    if sampling.min_p > 0:
        ids, shares = _first(ids, shares, shares >= sampling.min_p * shares[0])
    return ids, shares


def _first(ids: Array, shares: Array, wanted: Array) -> tuple[Array, Array]:
    """Those that are wanted, which come first; at least one."""
    count = max(1, int(wanted.sum()))
    return ids[:count], shares[:count]


def _numbers(seed: int | Sequence[Seed]) -> list[int]:
    if isinstance(seed, int):
        return [seed]
    return [part for one in seed for part in ([one] if isinstance(one, int) else one)]
