"""Real tokenizers, by the ``tokenizers`` library: it is imported when one is made, and nothing here imitates it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from archc.errors import ArchcError, MissingExtraError
from archc.families import TOKENIZER_ROLES
from archc_plugins.tokenizer.base import Sized, Special

MAX_FILE_BYTES = 128 << 20
"""The largest published tokenizer.json has about 35 MB."""

CHARACTER = r"[\s\S]"
WORD = r"\p{Han}| ?[\p{L}\p{M}\p{N}_&&[^\p{Han}]]+| ?[^\s\p{L}\p{M}\p{N}_]+|\s"
RUN = r" ?[\p{L}\p{M}\p{N}_]+| ?[^\s\p{L}\p{M}\p{N}_]+|\s"
"""Together these, and those above, take every character, so that nothing is lost between two words."""


def load(kind: Special, path: Path) -> Any:
    """The tokenizer in a tokenizer.json, held against what the spec says of it.

    Raises:
        ArchcError: the file can't be read, is too large, or does not fit the spec.
        MissingExtraError: ``tokenizers`` is not installed.
    """
    tokenizers = _library(kind)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise ArchcError(f"{path}: has {size_bytes:,} bytes; a tokenizer.json has at most {MAX_FILE_BYTES:,}")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArchcError(f"{path}: can't be read: {error}") from None
    try:
        made = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # The library raises nothing more special.
        raise ArchcError(f"{path}: is no tokenizer.json: {error}") from None
    model = type(made.model).__name__
    if kind.model and model != kind.model:
        raise ArchcError(f"{path}: holds a {model} model, and {kind.kind_name} is a {kind.model} model")
    last = max(made.get_vocab(with_added_tokens=True).values(), default=-1)
    if last >= kind.ids():
        raise ArchcError(f"{path}: has the id {last}, and the spec says that there are {kind.ids()} ids")
    for role in TOKENIZER_ROLES:
        for number in kind.role_ids(role):
            if made.id_to_token(number) is None:
                raise ArchcError(f"{path}: has no id {number}, the spec's {role}_token_id")
    return _padded(kind, made)


def of_bytes(kind: Special) -> Any:
    """Each byte a token of its own; special tokens at the ids that the spec states.

    Raises:
        MissingExtraError: ``tokenizers`` is not installed.
    """
    tokenizers = _library(kind)
    vocabulary = _numbered(kind, (f"<0x{number:02X}>" for number in range(256)))
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    # Every line apart: the model would hold a whole text as one word.
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\n"), behavior="merged_with_previous")
    made.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
    return _with_special(kind, made)


def train_words(kind: Sized, texts: Iterable[str], *, piece: str) -> Any:
    """The commonest pieces of the texts, each what the regular expression ``piece`` takes at once.

    Raises:
        MissingExtraError: ``tokenizers`` is not installed.
    """
    tokenizers = _library(kind)

    def empty(**words: Any) -> Any:
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(**words))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(piece), behavior="isolated")
        made.decoder = tokenizers.decoders.Fuse()
        return made

    learner = empty()
    trainer = tokenizers.trainers.WordLevelTrainer(
        vocab_size=kind.vocab_size - len(kind.special_tokens()), special_tokens=[], show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    vocabulary = _numbered(kind, _by_id(learner.get_vocab()))
    return _with_special(kind, empty(vocab=vocabulary, **_unknown(kind)))


def train_pairs(kind: Sized, texts: Iterable[str], *, byte_level: bool) -> Any:
    """Byte-pair encoding learned from the texts, over the alphabet of all bytes or over the commonest characters.

    Raises:
        MissingExtraError: ``tokenizers`` is not installed.
    """
    tokenizers = _library(kind)
    level = tokenizers.pre_tokenizers.ByteLevel
    room = kind.vocab_size - len(kind.special_tokens())

    def empty(**words: Any) -> Any:
        made = tokenizers.Tokenizer(tokenizers.models.BPE(**words))
        if byte_level:
            made.pre_tokenizer = level(add_prefix_space=False)
            made.decoder = tokenizers.decoders.ByteLevel()
        else:
            made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(RUN), behavior="isolated")
            made.decoder = tokenizers.decoders.Fuse()
        return made

    learner = empty()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=room,
        **({"initial_alphabet": sorted(level.alphabet())} if byte_level else {"limit_alphabet": room}),
        special_tokens=[],
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    vocabulary = _numbered(kind, _by_id(learned["vocab"]))
    # Every text is made of bytes, so nothing is unknown to them.
    unknown = {} if byte_level else _unknown(kind)
    return _with_special(kind, empty(vocab=vocabulary, merges=merges, **unknown))


def _library(kind: Special) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise MissingExtraError("tokenizers", f"the tokenizer of kind {kind.kind_name}") from None
    return tokenizers


def _unknown(kind: Special) -> dict[str, str]:
    """The argument of a model that names the unknown token, where the spec has one."""
    numbers = kind.role_ids("unk")
    return {"unk_token": kind.special_tokens()[numbers[0]]} if numbers else {}


def _by_id(vocabulary: dict[str, int]) -> list[str]:
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _numbered(kind: Special, learned: Iterable[str]) -> dict[str, int]:
    """Special tokens at their ids, what was learned at the others, in order; no piece of a text is named like one."""
    special = kind.special_tokens()
    free = (number for number in range(kind.ids()) if number not in special)
    return {**dict(zip(learned, free, strict=False)), **{name: number for number, name in special.items()}}


def _with_special(kind: Special, made: Any) -> Any:
    made.add_special_tokens([*kind.special_tokens().values()])
    return _padded(kind, made)


def _padded(kind: Special, made: Any) -> Any:
    """Batches are padded where the spec names a padding token."""
    for number in kind.role_ids("pad")[:1]:
        made.enable_padding(direction=kind.padding_side, pad_id=number, pad_token=made.id_to_token(number))
    return made
