"""Linear scaling of positions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from archc.families import Scaling


class Linear(Scaling):
    """Position interpolation, arXiv 2306.15595: every frequency divided by ``factor``."""

    factor: Annotated[float, Field(ge=1)]
    """What every frequency is divided by."""

    def frequencies(self, theta: float, dim: int, *, length: int | None) -> tuple[float, ...]:
        return tuple(theta ** (-2 * i / dim) / self.factor for i in range(dim // 2))
