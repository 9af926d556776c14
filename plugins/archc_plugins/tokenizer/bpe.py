"""Byte-pair encoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from archc_plugins.tokenizer.base import Sized
from archc_plugins.tokenizer.bytes import BYTES


class BPE(Sized):
    """Byte-pair encoding (arXiv 1508.07909) over bytes, as GPT-2's: every text has ids, and decoding gives it again.

    With ``byte_level: false`` it is over characters: what training did not meet becomes the unknown token, which
    ``unk_token_id`` names.
    """

    model: ClassVar[str] = "BPE"

    byte_level: bool = True
    """Whether words are made of bytes; false: of characters."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        # A file may hold an alphabet of its own.
        if self.file is not None:
            return
        special = len(self.special_tokens())
        if self.byte_level and self.vocab_size < BYTES + special:
            least = f"at least {BYTES + special}, {BYTES} bytes and {special} special tokens"
            yield "vocab_size", f"should be {least} (found {self.vocab_size})"
        if not self.byte_level and not self.role_ids("unk"):
            yield "byte_level", "false needs unk_token_id, or characters that are not known would vanish"

    def train(self, texts: Iterable[str]) -> Any:
        from archc_plugins.tokenizer.library import train_pairs

        return train_pairs(self, texts, byte_level=self.byte_level)
