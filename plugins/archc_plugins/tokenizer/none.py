"""No tokenizer."""

from __future__ import annotations

from archc.families import Tokenizer


class NoTokenizer(Tokenizer):
    """The model reads no ids: pixels, with an embedding that makes tokens of them."""

    def ids(self) -> int:
        return 0
