"""Byte-pair encoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from archc_plugins.tokenizer.base import Sized
from archc_plugins.tokenizer.bytes import BYTES


class BPE(Sized):
    """Byte-pair encoding (arXiv 1508.07909) over bytes, as GPT-2's: every text has ids, and decoding gives it again."""

    model: ClassVar[str] = "BPE"

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        special = len(self.special_tokens())
        # A file may hold an alphabet of its own.
        if self.file is None and self.vocab_size < BYTES + special:
            least = f"at least {BYTES + special}, {BYTES} bytes and {special} special tokens"
            yield "vocab_size", f"should be {least} (found {self.vocab_size})"

    def train(self, texts: Iterable[str]) -> Any:
        """A ``tokenizers.Tokenizer`` of the commonest pairs.

        Raises:
            MissingExtraError: ``tokenizers`` is not installed.
        """
        from archc_plugins.tokenizer.library import train_pairs

        return train_pairs(self, texts)
