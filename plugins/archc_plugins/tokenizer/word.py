"""Words as tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from archc_plugins.tokenizer.base import Sized


class Word(Sized):
    """One token a word: letters and digits, or signs, each with the space before it; a Han character is a word.

    So decoding gives the text again. What training did not meet becomes the unknown token; without ``unk_token_id`` it is
    an error.
    """

    model: ClassVar[str] = "WordLevel"

    def train(self, texts: Iterable[str]) -> Any:
        from archc_plugins.tokenizer.library import WORD, train_words

        return train_words(self, texts, piece=WORD)
