"""manifest.json: what a folder of shards was made of, and what is in it."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from archc.errors import ArchcError
from archc.training.data.vocabulary import Vocabulary

MANIFEST = "manifest.json"
DOCUMENTS = "documents.npy"
MAX_MANIFEST_BYTES = 1 << 30
"""Millions of input files; more is no manifest."""


DataForm = Literal["documents", "pairs"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InputFile(_Part):
    """A file that was read. ``path`` is relative to what was given."""

    path: str
    size_bytes: int = Field(ge=0)
    mtime_ns: int
    sha256: str


class Ids(_Part):
    """What a vocabulary was. ``tokenizer_sha256`` is None where nobody knows."""

    tokenizer_sha256: str | None = None
    bos_id: NonNegativeInt | None = None
    eos_id: NonNegativeInt | None = None
    mask_id: NonNegativeInt | None = None
    special_ids: tuple[NonNegativeInt, ...] = ()

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Ids:
        text = vocabulary.text
        stated = (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id)
        known = () if text is None else text.special_ids()
        mask_id = None if text is None else text.mask_id()
        return cls(
            tokenizer_sha256=vocabulary.tokenizer_sha256(),
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            mask_id=mask_id,
            special_ids=tuple(sorted({*known, *(one for one in (*stated, mask_id) if one is not None)})),
        )

    def misfit(self, vocabulary: Vocabulary) -> str:
        """How a vocabulary differs from this one, as "... "; empty where nothing that both know does."""
        digest = vocabulary.tokenizer_sha256()
        if None not in (digest, self.tokenizer_sha256) and digest != self.tokenizer_sha256:
            return "was made with another tokenizer"
        for name, then, now in (("bos", self.bos_id, vocabulary.bos_id), ("eos", self.eos_id, vocabulary.eos_id)):
            if then != now:
                return f"was made with the {name}_token_id {then}, and the spec's is {now}"
        return ""


class Manifest(_Part):
    """A folder of shards.

    Attributes:
        form: ``documents`` follow each other; of ``pairs`` every second document is the target of the one before.
        tokens: in all shards together, special ones included; each shard but the last has ``shard_tokens``.
        documents: documents.npy has as many numbers and one more: where each begins, and where the last one ends.
        largest_id: by vocabulary, those of sources before those of targets.
    """

    version: Literal[1] = 1
    form: DataForm
    dtype: Literal["uint16", "uint32"]
    tokens: int = Field(ge=0)
    shard_tokens: int = Field(ge=1)
    documents: int = Field(ge=0)
    left_out: int = Field(default=0, ge=0)
    """Documents without a token."""
    largest_id: tuple[int, ...] = Field(min_length=1, max_length=2)
    vocabularies: tuple[Ids, ...] = Field(min_length=1, max_length=2)
    inputs: tuple[InputFile, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if len(self.largest_id) != len(self.vocabularies):
            raise ValueError("largest_id and vocabularies differ in length")
        if self.form == "pairs" and self.documents % 2:
            raise ValueError("pairs are an even number of documents")
        return self

    @property
    def shards(self) -> int:
        return -(-self.tokens // self.shard_tokens)

    def shard_length(self, number: int) -> int:
        return min(self.shard_tokens, self.tokens - number * self.shard_tokens)

    def digest(self) -> str:
        """Equal where the ids are: of the contents that were read, whatever their names and times, and of the vocabularies."""
        facts = [
            self.form,
            self.tokens,
            [file.sha256 for file in self.inputs],
            [ids.model_dump(mode="json") for ids in self.vocabularies],
        ]
        return sha256(json.dumps(facts).encode()).hexdigest()


def shard_name(number: int) -> str:
    return f"tokens-{number:05d}.npy"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        ArchcError: there is none, or it is not one.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ArchcError(f"{path} has more than {MAX_MANIFEST_BYTES:,} bytes, so it is no manifest of shards")
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ArchcError(f"{path} can't be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ArchcError(f"{path} is no manifest of shards: {place + ': ' if place else ''}{first['msg']}") from error


def holds_shards(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()
