"""LongRoPE."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, PositiveFloat

from archc.errors import GraphError
from archc.families import Scaling


class LongRope(Scaling):
    """LongRoPE, arXiv 2402.13753: a divisor a channel pair, one list up to the trained length and one past it.

    Which list holds follows from ``max_position_embeddings``, the length that the model is run for, and from no call:
    changing lists when a text grows past the trained length, as transformers does, would leave a cache with keys of both.
    vLLM chooses by its ``max_model_len`` likewise. For short texts alone, ``--set max_position_embeddings`` to the trained
    length. cos and sin are multiplied by sqrt(1 + ln factor / ln original) under either list.
    """

    factor: Annotated[float, Field(ge=1)]
    """How many times longer the context becomes."""
    original_max_position_embeddings: Annotated[int, Field(ge=2)]
    """Length the model was trained at, in tokens."""
    short_factor: Annotated[list[PositiveFloat], Field(min_length=1)]
    """Divisor of each channel pair's frequency up to that length."""
    long_factor: Annotated[list[PositiveFloat], Field(min_length=1)]
    """The same past it."""

    def rules(self) -> Iterator[tuple[str, str]]:
        short, long = len(self.short_factor), len(self.long_factor)
        if short != long:
            yield "long_factor", f"should have as many numbers as short_factor, {short} (found {long})"

    def frequencies(self, theta: float, dim: int, *, length: int | None) -> tuple[float, ...]:
        if len(self.short_factor) != dim // 2:
            raise GraphError(
                f"longrope: short_factor and long_factor should have a number for each of the {dim // 2} channel pairs "
                f"that turn (found {len(self.short_factor)})"
            )
        trained = self.original_max_position_embeddings
        reach = self.factor * trained if length is None else length
        divisors = self.long_factor if reach > trained else self.short_factor
        return tuple(theta ** (-2 * i / dim) / divisor for i, divisor in enumerate(divisors))

    def attention_factor(self) -> float:
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position_embeddings))
