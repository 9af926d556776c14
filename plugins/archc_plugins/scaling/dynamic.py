"""Dynamic NTK scaling."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from archc.families import Scaling


class Dynamic(Scaling):
    """Dynamic NTK (YaRN, arXiv 2309.00071, section 3.3): a larger base past the trained length, none up to it.

    The base follows from ``max_position_embeddings``, the length that the model is run for, and from no call: a base that
    grew with the text, as transformers has it, would turn the keys of one cache by different angles. Without
    ``max_position_embeddings`` the length is ``factor`` times the trained one, as in vLLM.
    """

    factor: Annotated[float, Field(ge=1)]
    """How many times longer the context becomes."""
    original_max_position_embeddings: PositiveInt
    """Length the model was trained at, in tokens."""

    def frequencies(self, theta: float, dim: int, *, length: int | None) -> tuple[float, ...]:
        trained = self.original_max_position_embeddings
        reach = max(self.factor * trained if length is None else length, trained)
        stretch = self.factor * reach / trained - (self.factor - 1)
        # A single pair has frequency 1 whatever the base.
        base = theta * stretch ** (dim / (dim - 2)) if dim > 2 else theta
        return tuple(base ** (-2 * i / dim) for i in range(dim // 2))
