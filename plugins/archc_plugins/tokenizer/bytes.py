"""Bytes as tokens."""

from __future__ import annotations

from os import PathLike
from typing import Any, ClassVar

from archc_plugins.tokenizer.base import Special

BYTES = 256


class Bytes(Special):
    """The bytes of UTF-8 (ByT5, arXiv 2105.13626): as many ids as there are bytes and special tokens.

    Special tokens have the ids that are stated, and bytes the others, in order: with ``pad_token_id: 0`` and
    ``eos_token_id: 1`` byte b has id b + 2, with ``eos_token_id: 256`` its own number.
    """

    model: ClassVar[str] = "BPE"

    def ids(self) -> int:
        return BYTES + len(self.special_tokens())

    def has_file(self) -> bool:
        return True

    def load(self, folder: str | PathLike[str]) -> Any:
        if self.file is not None:
            return super().load(folder)
        from archc_plugins.tokenizer.library import of_bytes

        return of_bytes(self)
