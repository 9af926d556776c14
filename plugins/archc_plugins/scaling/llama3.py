"""Llama 3.1's scaling by wavelength."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from archc.families import Scaling


class Llama3(Scaling):
    """Llama 3.1 (arXiv 2407.21783): long wavelengths divided by ``factor``, short ones kept, a ramp between."""

    factor: Annotated[float, Field(ge=1)]
    """What long wavelengths are divided by."""
    original_max_position_embeddings: PositiveInt
    """Length the model was trained at, in tokens."""
    low_freq_factor: PositiveFloat
    """Wavelengths above the trained length over this count as long."""
    high_freq_factor: PositiveFloat
    """Wavelengths below the trained length over this count as short."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.high_freq_factor < self.low_freq_factor:
            yield "high_freq_factor", f"should be at least low_freq_factor, {self.low_freq_factor}"

    def frequencies(self, theta: float, dim: int, *, length: int | None) -> tuple[float, ...]:
        return tuple(self._scaled(theta ** (-2 * i / dim)) for i in range(dim // 2))

    def _scaled(self, frequency: float) -> float:
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        if turns < self.low_freq_factor:
            return frequency / self.factor
        if turns >= self.high_freq_factor:
            return frequency
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - share) * frequency / self.factor + share * frequency
