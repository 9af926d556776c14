"""The cache that forgets."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from archc.families import CachePolicy, Mixer


class Window(CachePolicy):
    """The newest tokens and the first ones, and nothing between (StreamingLLM, arXiv 2309.17453): changes results.

    A token sees itself, the ``window`` - 1 before it, and the first ``sink_tokens`` of the text. Kept keys stay rotated at
    the positions they were written at, unlike the paper's, which are counted within the cache.
    """

    rules_rows: ClassVar[bool] = True

    window: PositiveInt
    """Newest tokens that are kept, the current one included."""
    sink_tokens: NonNegativeInt = 0
    """First tokens that are never forgotten."""

    def kept(self) -> tuple[int, int]:
        return self.window, self.sink_tokens

    def objection(self, mixer: Mixer) -> str:
        return mixer.forgetting_objection(self.window, self.sink_tokens)
