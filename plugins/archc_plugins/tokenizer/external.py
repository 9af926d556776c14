"""A tokenizer that the spec only counts."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from archc.families import Tokenizer

TokenIds = NonNegativeInt | list[NonNegativeInt] | None


class External(Tokenizer):
    """A tokenizer kept elsewhere, in ``file`` (a tokenizer.json) or nowhere; only its size matters here."""

    vocab_size: PositiveInt
    file: str | None = None
    pad_token_id: TokenIds = None
    bos_token_id: TokenIds = None
    eos_token_id: TokenIds = None
    unk_token_id: TokenIds = None
    padding_side: Literal["left", "right"] = "right"

    def ids(self) -> int:
        return self.vocab_size
