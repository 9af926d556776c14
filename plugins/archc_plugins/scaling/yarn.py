"""YaRN."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from archc.families import Scaling


class Yarn(Scaling):
    """YaRN, arXiv 2309.00071: a ramp over the frequencies, and a factor on cos and sin.

    DeepSeek's form states ``mscale`` and ``mscale_all_dim``: cos and sin are multiplied by the ratio of the two, the
    softmax scale of latent attention by the square of the second.
    """

    factor: Annotated[float, Field(ge=1)]
    """How many times longer the context becomes."""
    original_max_position_embeddings: PositiveInt
    """Length the model was trained at, in tokens."""
    beta_fast: PositiveFloat = 32.0
    """Turns within the trained length above which a frequency is kept."""
    beta_slow: PositiveFloat = 1.0
    """Turns within it below which a frequency is divided."""
    mscale: Annotated[float, Field(gt=0, le=1000)] | None = None
    """With mscale_all_dim: what attention_factor is worked out from. Default: none."""
    mscale_all_dim: Annotated[float, Field(gt=0, le=1000)] | None = None
    """The same for the softmax scale of latent attention. Default: none."""
    # The name of the key is the published one; the method that answers for it is ``attention_factor()`` of the family.
    attention_factor_: Annotated[PositiveFloat | None, Field(alias="attention_factor")] = None
    """Factor on cos and sin. Default: worked out from factor."""
    truncate: bool = True
    """Whether the ramp's ends are rounded to whole channels."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.beta_fast < self.beta_slow:
            yield "beta_fast", f"should be at least beta_slow, {self.beta_slow}"

    def frequencies(self, theta: float, dim: int, *, length: int | None) -> tuple[float, ...]:
        low, high = self._turning_point(self.beta_fast, theta, dim), self._turning_point(self.beta_slow, theta, dim)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001
        result: list[float] = []
        for i in range(dim // 2):
            frequency = theta ** (-2 * i / dim)
            ramp = min(max((i - low) / (high - low), 0.0), 1.0)
            result.append(frequency / self.factor * ramp + frequency * (1 - ramp))
        return tuple(result)

    def attention_factor(self) -> float:
        if self.attention_factor_ is not None:
            return self.attention_factor_
        if self.mscale is not None and self.mscale_all_dim is not None:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    def softmax_multiplier(self) -> float:
        return 1.0 if self.mscale_all_dim is None else self._magnitude(self.mscale_all_dim) ** 2

    def _turning_point(self, turns: float, theta: float, dim: int) -> float:
        """The pair that turns so many times over the trained length."""
        length = self.original_max_position_embeddings
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    def _magnitude(self, scale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * scale * math.log(self.factor) + 1.0
