"""The rows of a batch: prompts in, and what each has come to, token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from archc.errors import ArchcError
from archc.generation.result import Generation, Timings, Token
from archc.generation.text import Text

DEFAULT_NEW_TOKENS = 128
DEFAULT_CHUNK_TOKENS = 512
Prompt = str | Sequence[int]


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt as a list of one; ids of a single prompt are told from several prompts by their first member.

    Raises:
        ArchcError: there is none.
    """
    if isinstance(prompts, str):
        return [prompts]
    several: list[Any] = list(prompts)
    if not several:
        raise ArchcError("there is no prompt; give at least one")
    return [several] if isinstance(several[0], int | np.integer) else several


def unpadded(ids: Any, mask: Any) -> list[Prompt]:
    """The rows of a batch of ids (batch, tokens) without their padding, on whatever side: where ``mask`` is 0.

    Raises:
        ArchcError: they are no such batch.
    """
    # Lists, arrays and tensors, wherever they are, are all told by their rows.
    rows, seen = (
        [[int(one) for one in row] for row in (batch.tolist() if hasattr(batch, "tolist") else batch)]
        for batch in (ids, mask)
    )
    if [len(row) for row in rows] != [len(row) for row in seen]:
        raise ArchcError("attention_mask should have a number for each id of a batch (batch, tokens)")
    return [[one for one, flag in zip(row, flags, strict=True) if flag] for row, flags in zip(rows, seen, strict=True)]


def prompt_ids(prompts: Sequence[Prompt], *, text: Text | None, vocab_size: int, hint: str) -> list[list[int]]:
    """The ids of every prompt. ``hint`` says where a text's tokenizer should have come from.

    Raises:
        ArchcError: a prompt is empty, is a text that nobody can read, or holds ids that the model has not.
    """
    return [_ids(prompt, number, text, vocab_size, hint) for number, prompt in enumerate(prompts)]


def _ids(prompt: Prompt, number: int, text: Text | None, vocab_size: int, hint: str) -> list[int]:
    if isinstance(prompt, str):
        if text is None:
            raise ArchcError(hint)
        ids = text.encode(prompt)
    else:
        ids = [int(one) for one in prompt]
    if not ids:
        raise ArchcError(f"prompt {number} is empty; a prompt has at least one token")
    wrong = [one for one in ids if not 0 <= one < vocab_size]
    if wrong:
        raise ArchcError(f"prompt {number} has the id {wrong[0]}; this model's ids are 0 to {vocab_size - 1}")
    return ids


class Rows:
    """What each row has so far: ids, text, and whether it has ended, by one of ``stop_ids`` or after ``new_tokens``."""

    def __init__(
        self,
        prompts: list[list[int]],
        text: Text | None,
        *,
        stop_ids: Iterable[int],
        new_tokens: int,
        on_token: Callable[[Token], None] | None,
    ) -> None:
        self._prompts = prompts
        self._stop_ids, self._new_tokens, self._on_token = frozenset(stop_ids), new_tokens, on_token
        self._readers = None if text is None else [text.reader() for _ in prompts]
        self.ids: list[list[int]] = [[] for _ in prompts]
        self._finished: list[str | None] = [None] * len(prompts)

    def take(self, drawn: Sequence[int]) -> bool:
        """Give each open row its id. Returns whether all rows have ended."""
        for row, number in enumerate(drawn):
            if self._finished[row] is not None:
                continue
            self.ids[row].append(number)
            if number in self._stop_ids:
                self._finished[row] = "stop"
            elif len(self.ids[row]) == self._new_tokens:
                self._finished[row] = "length"
            self._tell(row, number, is_last=self._finished[row] is not None)
        return None not in self._finished

    def _tell(self, row: int, number: int, *, is_last: bool) -> None:
        text = ""
        if self._readers is not None:
            text = self._readers[row].push(number)
            if is_last:
                text += self._readers[row].rest()
        if self._on_token is not None:
            self._on_token(Token(row, number, text, is_last))

    def generation(self, *, prefill_seconds: float, decode_seconds: float, cache_bytes: int) -> Generation:
        """All of it."""
        timings = Timings(
            prompt_tokens=sum(map(len, self._prompts)),
            prefill_seconds=prefill_seconds,
            decode_tokens=sum(len(row) - 1 for row in self.ids),
            decode_seconds=decode_seconds,
        )
        return Generation(
            prompts=self._prompts,
            ids=self.ids,
            texts=None if self._readers is None else [reader.text for reader in self._readers],
            finished=[end or "length" for end in self._finished],
            timings=timings,
            cache_bytes=cache_bytes,
        )
