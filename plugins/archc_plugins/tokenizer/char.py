"""Characters as tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from archc_plugins.tokenizer.base import Sized


class Char(Sized):
    """One token a character (a Unicode code point).

    What training did not meet becomes the unknown token; without ``unk_token_id`` it is an error.
    """

    model: ClassVar[str] = "WordLevel"

    def train(self, texts: Iterable[str]) -> Any:
        from archc_plugins.tokenizer.library import CHARACTER, train_words

        return train_words(self, texts, piece=CHARACTER)
