"""Pieces of documents to ids, many at once, into shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from archc.errors import ArchcError
from archc.training.data.arrays import Array
from archc.training.data.documents import PIECE_CHARACTERS, Piece, Read, read_pieces
from archc.training.data.manifest import DataForm, Ids, Manifest
from archc.training.data.shards import SHARD_TOKENS, ShardWriter
from archc.training.data.sources import Source
from archc.training.data.vocabulary import Vocabulary

Progress = Callable[[str, int, int], None]
"""(what is being done, how many bytes are done, of how many)."""

_BATCH_CHARACTERS = PIECE_CHARACTERS * min(max(8, os.cpu_count() or 1), 32)
"""A piece for each core; the library holds about a hundred bytes for each character."""
_BATCH_PIECES = 4096


def tokenise(
    sources: Sequence[Source],
    vocabularies: Sequence[Vocabulary],
    folder: Path,
    *,
    progress: Progress | None = None,
    form: DataForm | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> Manifest:
    """Read files, write their shards into ``folder``, and say what they are; the manifest is not written.

    Memory is bounded by a batch of pieces, whatever the files.

    Raises:
        ArchcError: a file is no text, or the spec has no such id.
        OSError: the disk is full.
    """
    total_bytes = sum(source.size_bytes for source in sources)
    dtype = "uint16" if max(vocabulary.num_ids for vocabulary in vocabularies) <= 1 << 16 else "uint32"
    read = Read([])
    encoder = _Encoder(vocabularies)
    with ShardWriter(folder, dtype, shard_tokens=shard_tokens) as writer:
        for batch in _batches(read_pieces(sources, read, wanted=form)):
            writer.append(*encoder.encode(batch))
            if progress is not None:
                progress("tokenising", read.done_bytes, total_bytes)
        writer.close()
    used = vocabularies if encoder.is_paired else vocabularies[-1:]
    return Manifest(
        form="pairs" if encoder.is_paired else "documents",
        dtype=dtype,
        tokens=writer.tokens,
        shard_tokens=shard_tokens,
        documents=writer.documents,
        left_out=encoder.left_out + read.left_out,
        largest_id=tuple(encoder.largest_id[-len(used) :]),
        vocabularies=tuple(Ids.of(vocabulary) for vocabulary in used),
        inputs=tuple(source.record(sha) for source, sha in zip(sources, read.digests, strict=True)),
    )


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if characters >= _BATCH_CHARACTERS or len(batch) == _BATCH_PIECES:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Encoder:
    """Ids of pieces, with what the spec puts around a document."""

    def __init__(self, vocabularies: Sequence[Vocabulary]) -> None:
        self._vocabularies = vocabularies
        self.largest_id = [-1] * len(vocabularies)
        self.is_paired = False
        self.left_out = 0
        self._has_begun = False
        """Whether the open document has a token."""

    def encode(self, batch: Sequence[Piece]) -> tuple[Array, Array]:
        """(ids of a batch one after the other, where among them documents begin)."""
        arrays: list[Array] = []
        begins: list[int] = []
        length = 0
        for piece, row in zip(batch, self._rows(batch), strict=True):
            if piece.begins:
                self._has_begun = False
            ids, begun = self._framed(piece, row), self._has_begun
            if len(ids):
                self._check(piece, ids)
                arrays.append(ids)
                if not begun:
                    begins.append(length)
                length += len(ids)
                self._has_begun = True
            elif piece.ends and not begun:
                self._leave_out(piece)
        return np.concatenate(arrays) if arrays else np.empty(0, np.int64), np.array(begins, np.int64)

    def _rows(self, batch: Sequence[Piece]) -> list[list[int]]:
        """Sources are read as a prompt is, with what the tokenizer puts around one."""
        rows: list[list[int]] = [[]] * len(batch)
        for is_source in (False, True):
            at = [index for index, piece in enumerate(batch) if (piece.role == "source") is is_source]
            self.is_paired |= is_source and bool(at)
            pieces = [batch[index] for index in at]
            for index, row in zip(at, self._encoded(pieces, self._vocabularies[0 if is_source else -1]), strict=True):
                rows[index] = row
        return rows

    def _encoded(self, pieces: Sequence[Piece], vocabulary: Vocabulary) -> list[list[int]]:
        text = vocabulary.text
        assert text is not None, "open_data asks for a tokenizer"
        if not pieces:
            return []
        with_special = pieces[0].role == "source"
        try:
            return text.encode_many([piece.text for piece in pieces], with_special=with_special)
        except ArchcError as error:
            if len(pieces) == 1:
                raise ArchcError(
                    f"{pieces[0].place}: {error}. State unk_token_id in the spec, or learn the tokenizer from this data"
                ) from error
        return [row for piece in pieces for row in self._encoded([piece], vocabulary)]

    def _framed(self, piece: Piece, row: list[int]) -> Array:
        ids = np.array(row, np.int64)
        if piece.role == "source" or not (len(ids) or self._has_begun):
            return ids
        vocabulary = self._vocabularies[-1]
        bos = [] if self._has_begun or piece.role == "target" or vocabulary.bos_id is None else [vocabulary.bos_id]
        eos = [] if not piece.ends or vocabulary.eos_id is None else [vocabulary.eos_id]
        return np.concatenate([np.array(bos, np.int64), ids, np.array(eos, np.int64)]) if bos or eos else ids

    def _check(self, piece: Piece, ids: Array) -> None:
        at = 0 if piece.role == "source" else -1
        vocabulary, largest = self._vocabularies[at], int(ids.max())
        if largest >= vocabulary.num_ids:
            raise ArchcError(
                f"{piece.place}: a vocabulary that does not match: the tokenizer gives the id {largest}, and the spec has "
                f"{vocabulary.num_ids} ids"
            )
        self.largest_id[at] = max(self.largest_id[at], largest)

    def _leave_out(self, piece: Piece) -> None:
        if piece.role != "text":
            raise ArchcError(f"{piece.place}: the {piece.role} of a pair gives no token")
        self.left_out += 1
