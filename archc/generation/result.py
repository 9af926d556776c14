"""What a generation gives: tokens as they come, and all of it at the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Token:
    """An id that was generated, and the text that can be read since the one before; ``is_last`` ends its row."""

    row: int
    id: int
    text: str
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """What a generation took. The first new token of each row is the prefill's, the others are decode's."""

    prompt_tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float

    @property
    def prefill_tokens_per_second(self) -> float:
        return self.prompt_tokens / max(self.prefill_seconds, 1e-9)

    @property
    def decode_tokens_per_second(self) -> float:
        return self.decode_tokens / max(self.decode_seconds, 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What was generated, a list entry a prompt.

    Attributes:
        ids: new ids, that which ended the row included.
        texts: the text of the new ids; None without a tokenizer.
        finished: ``stop`` where an id ended the row, ``length`` where the number of tokens did.
        cache_bytes: of the buffers that held the caches.
    """

    prompts: list[list[int]]
    ids: list[list[int]]
    texts: list[str] | None
    finished: list[str]
    timings: Timings
    cache_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain data, rates included."""
        timings = asdict(self.timings)
        timings["prefill_tokens_per_second"] = self.timings.prefill_tokens_per_second
        timings["decode_tokens_per_second"] = self.timings.decode_tokens_per_second
        return {
            "prompts": self.prompts,
            "ids": self.ids,
            "texts": self.texts,
            "finished": self.finished,
            "timings": timings,
            "cache_bytes": self.cache_bytes,
        }
