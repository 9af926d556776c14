"""Files as documents, and documents as pieces of bounded size, whatever the size of a file."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from archc.errors import ArchcError
from archc.training.data.manifest import DataForm
from archc.training.data.sources import Source, blocks, opened

PIECE_CHARACTERS = 128 << 10
"""A longer document is tokenised in pieces, which end with a line where they can."""
MAX_LINE_BYTES = 32 << 20
"""Of a line of JSON, which is read whole."""
MAX_SOURCE_CHARACTERS = 1 << 20
"""Of the source of a pair, which is tokenised whole."""
_BOM = b"\xef\xbb\xbf"
_LINES_TRIED = 256

Role = Literal["text", "source", "target"]
_FORMS = '{"text": …} for a document, or {"source": …, "target": …} for a pair'


def other_form(place: str, wanted: DataForm) -> ArchcError:
    """The error of data in the form that a model does not learn from."""
    if wanted == "pairs":
        return ArchcError(
            f"{place}: holds a plain document, and a model with an encoder and a decoder learns from pairs; give .jsonl files "
            'with {"source": "…", "target": "…"} in each line'
        )
    return ArchcError(
        f"{place}: holds a pair of source and target, and a model of one stack learns from documents; give texts, or .jsonl "
        'files with {"text": "…"} in each line'
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document; ``place`` says where it stands."""

    text: str
    role: Role
    begins: bool
    ends: bool
    place: str


@dataclass(slots=True)
class Read:
    """What is known of files as they are read: digests of those that are finished, bytes, pairs with an empty side."""

    digests: list[str]
    done_bytes: int = 0
    left_out: int = 0


def read_pieces(sources: Sequence[Source], read: Read, *, wanted: DataForm | None = None) -> Iterator[Piece]:
    """All documents of all files, in order; ``wanted`` is what the model learns from.

    Raises:
        ArchcError: a file is not what its name says, is no text, or has another form than the model wants or others have.
    """
    form = wanted
    for source in sources:
        before = read.done_bytes
        with opened(source) as (stream, raw):
            for piece in _text_file(source, stream) if source.form == "text" else _json_lines(source, stream, read):
                found: DataForm = "documents" if piece.role == "text" else "pairs"
                if form not in (None, found):
                    if wanted is not None:
                        raise other_form(piece.place, wanted)
                    raise ArchcError(
                        f"{piece.place}: documents and pairs stand in one set of data; give the one or the other"
                    )
                form = found
                yield piece
                read.done_bytes = before + raw.read_bytes
        read.done_bytes = before + source.size_bytes
        read.digests.append(raw.hexdigest())


def _text_file(source: Source, stream: io.BufferedIOBase) -> Iterator[Piece]:
    place = str(source.path)
    yield from _pieces(_characters(source, stream), place)


def _characters(source: Source, stream: io.BufferedIOBase) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = 0
    for block in blocks(stream):
        if start == 0:
            if block[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise ArchcError(f"{source.path} is UTF-16; data is UTF-8 (iconv -f UTF-16 -t UTF-8 turns it)")
            block_text = block.removeprefix(_BOM)
            start += len(block) - len(block_text)
            block = block_text
        if (at := block.find(0)) >= 0:
            raise ArchcError(f"{source.path} is no text: byte {start + at:,} is NUL; leave binary files out")
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block)
        except UnicodeDecodeError as error:
            raise _no_utf8(source, start - held + error.start, error) from error
        start += len(block)
        yield text
    held = len(decoder.getstate()[0])
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _no_utf8(source, start - held + error.start, error) from error


def _no_utf8(source: Source, at: int, error: UnicodeDecodeError) -> ArchcError:
    return ArchcError(
        f"{source.path} is no UTF-8: {error.reason} at byte {at:,}; leave binary files out, and turn other encodings into "
        "UTF-8"
    )


def _pieces(texts: Iterator[str], place: str, role: Role = "text") -> Iterator[Piece]:
    """One document from its text, which comes in parts of any length."""
    kept, begins = "", True
    for text in texts:
        kept += text
        start = 0
        # One character more than a piece, because a cut looks at what follows it.
        while len(kept) - start > PIECE_CHARACTERS:
            end = _cut(kept, start, start + PIECE_CHARACTERS)
            yield Piece(kept[start:end], role, begins, False, place)
            start, begins = end, False
        kept = kept[start:]
    yield Piece(kept, role, begins, True, place)


def _cut(text: str, start: int, end: int) -> int:
    """Where a piece that begins at ``start`` ends, at ``end`` or before.

    Between two lines that touch without further space: tokenizers see each side as they would see it in the whole text.
    Else behind a line, else before a space, else anywhere.
    """
    least = start + (end - start) // 2
    at = line = text.rfind("\n", least, end)
    for _ in range(_LINES_TRIED):
        if at < 0:
            break
        if not text[at + 1].isspace() and not text[at - 1].isspace():
            return at + 1
        at = text.rfind("\n", least, at)
    if line >= 0:
        return line + 1
    space = text.rfind(" ", least, end)
    return space if space >= 0 else end


def _json_lines(source: Source, stream: io.BufferedIOBase, read: Read) -> Iterator[Piece]:
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        place = f"{source.path}:{number}"
        if len(line) > MAX_LINE_BYTES:
            raise ArchcError(
                f"{place}: a line has more than {MAX_LINE_BYTES:,} bytes; give such a document as a .txt file"
            )
        line = line.removeprefix(_BOM) if number == 1 else line
        if line.strip():
            yield from _line_pieces(_object(line, place), place, read)


def _object(line: bytes, place: str) -> dict[str, Any]:
    if (at := line.find(0)) >= 0:
        raise ArchcError(f"{place}: is no text: byte {at:,} of the line is NUL")
    try:
        found: Any = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ArchcError(f"{place}: is no UTF-8: {error.reason} at byte {error.start:,} of the line") from error
    except (ValueError, RecursionError) as error:
        raise ArchcError(f"{place}: is no JSON: {error}; a line is an object: {_FORMS}") from error
    if not isinstance(found, dict):
        raise ArchcError(f"{place}: is no object; a line is {_FORMS}")
    return found


def _line_pieces(found: dict[str, Any], place: str, read: Read) -> Iterator[Piece]:
    if "text" in found:
        yield from _pieces(iter([_field(found, "text", place)]), place)
    elif "source" in found and "target" in found:
        source, target = _field(found, "source", place), _field(found, "target", place)
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ArchcError(f"{place}: a source has more than {MAX_SOURCE_CHARACTERS:,} characters")
        if not source.strip() or not target.strip():
            read.left_out += 1
            return
        yield Piece(source, "source", True, True, place)
        yield from _pieces(iter([target]), place, "target")
    else:
        has = ", ".join(map(str, found)) or "nothing"
        raise ArchcError(f"{place}: has no text (found {has}); a line is {_FORMS}")


def _field(found: dict[str, Any], name: str, place: str) -> str:
    text = found[name]
    if not isinstance(text, str):
        raise ArchcError(f"{place}: {name} should be a text (found {type(text).__name__})")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ArchcError(f"{place}: {name} has half a surrogate pair at character {error.start:,}") from error
    return text
