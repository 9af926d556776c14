"""How texts become ids: the tokenizer, and the ids that the spec puts around a document."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from archc.errors import ArchcError
from archc.families import Tokenizer
from archc.generation.text import Text
from archc.spec.schema import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The ids of one stack.

    Attributes:
        text: the tokenizer; None where data is tokenised already.
        num_ids: ids that the spec has.
        bos_id: put before a document, where there is one.
        eos_id: put behind a document, where there is one.
        pad_id: what fills up rows, where there is one.
    """

    text: Text | None
    num_ids: int
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None

    @property
    def fill_id(self) -> int:
        """What fills up rows: any id is as good where it is masked or comes last."""
        return next((number for number in (self.pad_id, self.eos_id) if number is not None), 0)

    def tokenizer_sha256(self) -> str | None:
        return None if self.text is None else sha256(self.text.to_json().encode()).hexdigest()


def vocabularies_of(spec: Spec, text: Text | None, source_text: Text | None = None) -> tuple[Vocabulary, ...]:
    """(the vocabulary), or (the encoder's, the decoder's) of a model that has both, which may be two tokenizers.

    ``text`` reads what the last stack predicts, ``source_text`` what an encoder reads, by default the same.

    Raises:
        ArchcError: a tokenizer knows ids that the spec has not.
    """
    kinds: list[Tokenizer] = [stack.tokenizer or spec.tokenizer for stack in spec.stacks().values()]
    texts = [text] if len(kinds) == 1 else [source_text or text, text]
    return tuple(_vocabulary(kind, read, spec.name) for kind, read in zip(kinds, texts, strict=True))


def _vocabulary(kind: Tokenizer, text: Text | None, name: str) -> Vocabulary:
    if text is not None and text.last_id >= kind.ids():
        raise ArchcError(
            f"a vocabulary that does not match: the tokenizer has the id {text.last_id}, and {name} says that there are "
            f"{kind.ids()} ids; take the model's own tokenizer, or state its number of ids in the spec"
        )

    def first(role: str) -> int | None:
        return next(iter(kind.role_ids(role)), None)

    return Vocabulary(text=text, num_ids=kind.ids(), bos_id=first("bos"), eos_id=first("eos"), pad_id=first("pad"))
