"""Text in and out, by the ``tokenizers`` library; ids become text piece by piece, and no piece ends inside a character."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archc.errors import ArchcError, MissingExtraError

_UNREADABLE = "\ufffd"
_MASKS = ("[MASK]", "<mask>")
_MAX_TOKENS_OF_A_CHARACTER = 4
"""UTF-8 has at most four bytes a character, and a token at least one."""


class Text:
    """The tokenizer of a folder."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # A prompt is one text of its own length, whatever the file says about batches.
        tokenizer.no_padding()
        tokenizer.no_truncation()

    @property
    def last_id(self) -> int:
        """The highest id that it knows, added tokens included; -1 where it knows none."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def mask_id(self) -> int | None:
        """The id of the token that stands for a masked one, under the names that it has; None where there is none."""
        found = (self._tokenizer.token_to_id(name) for name in _MASKS)
        return next((number for number in found if number is not None), None)

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, with the special tokens that the tokenizer puts around it."""
        return self._tokenizer.encode(text).ids

    def encode_many(self, texts: Sequence[str], *, with_special: bool = False) -> list[list[int]]:
        """Ids of several texts, without the special tokens that the tokenizer would put around each unless they are wanted.

        Raises:
            ArchcError: a text holds what the tokenizer has no id for.
        """
        try:
            rows = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=with_special)
        except Exception as error:  # The library raises nothing more special.
            raise ArchcError(f"the tokenizer has no ids for all of a text: {error}") from error
        return [row.ids for row in rows]

    def special_ids(self) -> tuple[int, ...]:
        """Ids of the special tokens, in order."""
        added = self._tokenizer.get_added_tokens_decoder()
        return tuple(sorted(number for number, token in added.items() if token.special))

    def to_json(self) -> str:
        """The tokenizer as its file says it, without padding and truncation."""
        return self._tokenizer.to_str()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def reader(self) -> Reader:
        """For one row's ids, one after the other."""
        return Reader(self)


class Reader:
    """Ids one at a time to pieces of text that end between characters; ``text`` is what they came to so far.

    A token is read together with those of the piece before it, because a tokenizer writes one otherwise at the start of a
    text. It waits while the text ends in U+FFFD, which is what bytes of an unfinished character are shown as.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._context: list[int] = []
        self._waiting: list[int] = []
        self.text = ""

    def push(self, number: int) -> str:
        """What can be read now: nothing while the ids end inside a character."""
        self._waiting.append(number)
        before, now = self._text.decode(self._context), self._text.decode([*self._context, *self._waiting])
        if now.endswith(_UNREADABLE):
            if len(self._waiting) <= _MAX_TOKENS_OF_A_CHARACTER:
                return ""
            # No character is that long, so the first of these ids belongs to none.
            return self._broken()
        # Ids without a text, as special tokens are, stay no context for what follows.
        if len(now) > len(before):
            self._context, self._waiting = self._waiting, []
        return self._gained(now[len(before) :])

    def rest(self) -> str:
        """What is left when no more ids come."""
        waiting, self._waiting = self._waiting, []
        return self._gained(self._text.decode(waiting))

    def _broken(self) -> str:
        first, *others = self._waiting
        self._context, self._waiting = [], []
        piece = self._gained(self._text.decode([first]))
        return piece + "".join(self.push(number) for number in others)

    def _gained(self, piece: str) -> str:
        self.text += piece
        return piece


def read_tokenizer(path: Path) -> Text:
    """The tokenizer in a tokenizer.json, for texts of their own length.

    Raises:
        ArchcError: the file can't be read, or is none.
        MissingExtraError: ``tokenizers`` is not installed.
    """
    return Text(open_tokenizer(path))


def open_tokenizer(path: Path) -> Any:
    """The ``tokenizers.Tokenizer`` in a tokenizer.json, as it is.

    Raises:
        ArchcError: the file can't be read, or is none.
        MissingExtraError: ``tokenizers`` is not installed.
    """
    try:
        import tokenizers
    except ImportError:
        raise MissingExtraError("tokenizers", f"the tokenizer in {path}") from None
    try:
        return tokenizers.Tokenizer.from_str(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ArchcError(f"{path} can't be read: {error}") from error
    except Exception as error:  # The library raises nothing more special.
        raise ArchcError(f"{path}: is no tokenizer.json: {error}") from error
