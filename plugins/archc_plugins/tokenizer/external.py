"""A tokenizer that the spec only counts."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from archc.families import Tokenizer

TokenIds = NonNegativeInt | list[NonNegativeInt] | None


class External(Tokenizer):
    """A tokenizer kept elsewhere, in ``file`` (a tokenizer.json) or nowhere; only its size matters here."""

    vocab_size: PositiveInt
    """Ids the tokenizer can produce, special tokens included."""
    file: str | None = None
    """A tokenizer.json, relative to the spec."""
    pad_token_id: TokenIds = None
    """Padding token."""
    bos_token_id: TokenIds = None
    """Token before a text."""
    eos_token_id: TokenIds = None
    """Token that ends a text."""
    unk_token_id: TokenIds = None
    """Token for what has no other."""
    padding_side: Literal["left", "right"] = "right"
    """Side on which a ragged batch is padded; archc's caches take right-padded batches."""

    def ids(self) -> int:
        return self.vocab_size
