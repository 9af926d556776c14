"""What all tokenizers have in common: special tokens, a file, and a real tokenizer when somebody asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from archc.families import TOKENIZER_ROLES, Tokenizer

TokenIds = NonNegativeInt | list[NonNegativeInt] | None


class Special(Tokenizer):
    """Special tokens by id, and where the real tokenizer is kept. A spec needs only the number of ids."""

    model: ClassVar[str] = ""
    """The model of the ``tokenizers`` library that a file of this kind holds; empty where any is right."""

    file: str | None = None
    """tokenizer.json, relative to the spec."""
    pad_token_id: TokenIds = None
    """Id of the padding token."""
    bos_token_id: TokenIds = None
    """Id of the token that begins a text."""
    eos_token_id: TokenIds = None
    """Id of the token that ends a text, or several."""
    unk_token_id: TokenIds = None
    """Id of the token that stands for what is not in the vocabulary."""
    padding_side: Literal["left", "right"] = "right"
    """Where a ragged batch is padded; caches take batches padded on the right."""

    def rules(self) -> Iterator[tuple[str, str]]:
        for role in TOKENIZER_ROLES:
            for number in self.role_ids(role):
                if number >= self.ids():
                    yield f"{role}_token_id", f"should be below {self.ids()}, the number of ids (found {number})"
        if self.file is not None and (PurePosixPath(self.file).is_absolute() or PureWindowsPath(self.file).drive):
            yield "file", f"should be relative to the spec (found {self.file})"

    def role_ids(self, role: str) -> list[int]:
        stated: int | list[int] | None = getattr(self, f"{role}_token_id")
        return [] if stated is None else [stated] if isinstance(stated, int) else stated

    def special_tokens(self) -> dict[int, str]:
        """Id -> name of every special token, ``<eos>``, a second one ``<eos_1>``; an id of two roles has one name."""
        names: dict[int, str] = {}
        for role in TOKENIZER_ROLES:
            for at, number in enumerate(self.role_ids(role)):
                names.setdefault(number, f"<{role}_{at}>" if at else f"<{role}>")
        return names

    def has_file(self) -> bool:
        return self.file is not None

    def load(self, folder: str | PathLike[str]) -> Any:
        if self.file is None:
            return super().load(folder)
        from archc_plugins.tokenizer.library import load

        return load(self, Path(folder) / self.file)


class Sized(Special):
    """A tokenizer whose number of ids is stated."""

    vocab_size: PositiveInt
    """Ids the tokenizer can produce, special tokens included."""

    def ids(self) -> int:
        return self.vocab_size
