"""Learns tokenizers from text files, and says what is in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from archc.cli.files import write_atomically
from archc.cli.progress import busy
from archc.cli.table import print_heading, print_pairs
from archc.cli.writing_options import ids_of
from archc.errors import ArchcError
from archc.expansion import expand
from archc.families import TOKENIZER_ROLES, Tokenizer
from archc.generation.text import open_tokenizer
from archc.ops.linear import Embedding
from archc.spec.load import load_spec
from archc.spec.schema import Spec

TOKENIZER = "tokenizer.json"
_LINES = 1024
"""So many are encoded at once."""


def train_file(
    spec: str, overrides: Sequence[str], files: Sequence[str], output: str, *, overwrite: bool
) -> dict[str, Any]:
    """Learn the tokenizer of a spec from files and write it; figures of what was learned.

    Raises:
        ArchcError: the kind learns nothing, a file can't be read, or ``output`` is there already.
    """
    loaded = load_spec(spec, overrides)
    kind = _kind(loaded)
    out = Path(output)
    if out.exists() and not overwrite:
        raise ArchcError(f"{out} is there already; --overwrite replaces it")
    with busy(f"learning from {', '.join(files)}"):
        made = kind.train(_lines(files))
        text, inside = made.to_str(pretty=True), _inside(made)
        counts = _counts(made, kind, files)
    write_atomically(out, text)
    return {"name": loaded.name, "file": str(out), **_sizes(loaded), **inside, **counts}


def show_tokenizer(
    source: str, overrides: Sequence[str], *, texts: Sequence[str], ids: str | None, keep_special: bool
) -> dict[str, Any]:
    """What a tokenizer.json holds, or what a spec says of its tokenizer; with texts and ids through it.

    Raises:
        ArchcError: the source can't be read, or there is nothing to encode with.
    """
    path = Path(source)
    file = path / TOKENIZER if path.is_dir() and (path / TOKENIZER).is_file() else path
    found: dict[str, Any] = {"source": source}
    if file.suffix == ".json":
        made = open_tokenizer(file)
    else:
        loaded = load_spec(path / "spec.yaml" if path.is_dir() else source, overrides)
        kind = _kind(loaded)
        found |= {"name": loaded.name, **_sizes(loaded)}
        made = kind.load(path if path.is_dir() else path.parent) if kind.has_file() else None
    if made is not None:
        found |= _inside(made)
    if texts or ids is not None:
        if made is None:
            raise ArchcError(f"{source} names no tokenizer file; archc tokenizer train {source} --data FILE makes one")
        found["texts"] = _encoded(made, texts, keep_special)
        if ids is not None:
            numbers = _numbers(ids)
            found["ids"] = {"ids": numbers, "text": made.decode(numbers, skip_special_tokens=not keep_special)}
    return found


def _kind(spec: Spec) -> Tokenizer:
    kind = spec.tokenizer
    assert isinstance(kind, Tokenizer)
    return kind


def _lines(files: Sequence[str]) -> Iterator[str]:
    """Line by line, line ends kept as they are, so that a file of any length is learned from."""
    for file in files:
        try:
            with open(file, encoding="utf-8", newline="") as handle:
                yield from handle
        except (OSError, UnicodeDecodeError) as error:
            raise ArchcError(f"{file} can't be read as UTF-8: {error}") from error


def _counts(made: Any, kind: Tokenizer, files: Sequence[str]) -> dict[str, int]:
    """Characters, bytes and tokens of the files, and how many tokens are the unknown one."""
    unknown = set(kind.role_ids("unk"))
    found = {"characters": 0, "bytes": 0, "tokens": 0, "unknown_tokens": 0}
    made.no_padding()
    given = _lines(files)
    while lines := list(islice(given, _LINES)):
        try:
            rows = made.encode_batch(lines, add_special_tokens=False)
        except Exception as error:  # The library raises nothing more special.
            raise ArchcError(
                f"vocab_size {kind.ids()} holds not all of the texts, and there is no unknown token ({error}): state "
                "unk_token_id, or raise vocab_size"
            ) from error
        found["characters"] += sum(map(len, lines))
        found["bytes"] += sum(len(line.encode()) for line in lines)
        found["tokens"] += sum(len(row.ids) for row in rows)
        found["unknown_tokens"] += sum(number in unknown for row in rows for number in row.ids)
    return found


def _sizes(spec: Spec) -> dict[str, Any]:
    """Ids by the spec, and rows of its table, which may be padded."""
    kind = _kind(spec)
    graph = expand(spec)
    tables = (node.op.num_embeddings for _, node in graph.walk() if isinstance(node.op, Embedding))
    return {
        "kind": kind.kind_name,
        "vocab_size": kind.ids(),
        "table_rows": next(tables, kind.ids()),
        "roles": {role: ids for role in TOKENIZER_ROLES if (ids := kind.role_ids(role))},
    }


def _inside(made: Any) -> dict[str, Any]:
    """What a real tokenizer holds."""
    vocabulary: Mapping[str, int] = made.get_vocab(with_added_tokens=True)
    added = made.get_added_tokens_decoder()
    parts = {name: getattr(made, name) for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}
    padding: Mapping[str, Any] | None = made.padding
    return {
        "model": type(made.model).__name__,
        "entries": len(vocabulary),
        "last_id": max(vocabulary.values(), default=-1),
        "special": {str(number): token.content for number, token in sorted(added.items()) if token.special},
        "parts": {name: type(part).__name__ for name, part in parts.items() if part is not None},
        "padding": None if padding is None else {key: padding[key] for key in ("direction", "pad_id", "pad_token")},
    }


def _encoded(made: Any, texts: Sequence[str], keep_special: bool) -> list[dict[str, Any]]:
    return [
        {
            "text": text,
            "ids": row.ids,
            "tokens": row.tokens,
            "mask": row.attention_mask,
            "decoded": made.decode(row.ids, skip_special_tokens=not keep_special),
        }
        for text, row in zip(texts, made.encode_batch(list(texts)), strict=True)
    ]


def _numbers(text: str) -> list[int]:
    try:
        numbers = ids_of(text)
    except ValueError:
        raise ArchcError(f"--ids should be ids as in 1,2,3 (found {text!r})") from None
    if any(not 0 <= one < 1 << 32 for one in numbers):
        raise ArchcError(f"--ids should be 0 or more, and below 2^32 (found {text!r})")
    return numbers


def print_trained(found: Mapping[str, Any]) -> None:
    """What was learned and where it was written."""
    _print_sizes(found)
    per_token = found["bytes"] / max(found["tokens"], 1)
    share = found["unknown_tokens"] / max(found["tokens"], 1)
    print_pairs(
        [
            ("characters learned from", f"{found['characters']:,}"),
            ("bytes", f"{found['bytes']:,}"),
            ("tokens", f"{found['tokens']:,}"),
            ("bytes a token", f"{per_token:.2f}"),
            ("unknown tokens", f"{found['unknown_tokens']:,} ({share:.2%})"),
        ]
    )
    click.echo(f"  wrote {found['file']}")
    free = found["vocab_size"] - found["entries"]
    if free:
        click.echo(
            f"archc: the texts gave {found['entries']:,} ids; {free:,} of the spec's {found['vocab_size']:,} have no token",
            err=True,
        )


def print_shown(found: Mapping[str, Any]) -> None:
    """Sizes, special tokens and parts, then texts and ids."""
    _print_sizes(found)
    for row in found.get("texts", ()):
        print_heading(repr(row["text"]))
        print_pairs(
            [
                ("ids", ",".join(map(str, row["ids"]))),
                ("tokens", " ".join(map(repr, row["tokens"]))),
                ("mask", ",".join(map(str, row["mask"]))),
                ("decoded", repr(row["decoded"])),
            ],
            left=2,
        )
    if "ids" in found:
        print_heading(",".join(map(str, found["ids"]["ids"])))
        print_pairs([("decoded", repr(found["ids"]["text"]))], left=2)


def _print_sizes(found: Mapping[str, Any]) -> None:
    rows: list[tuple[str, str]] = []
    if "kind" in found:
        rows += [
            ("kind", found["kind"]),
            ("vocab_size", f"{found['vocab_size']:,} ids"),
            ("rows of the table", f"{found['table_rows']:,}{_padding(found)}"),
        ]
    if "model" in found:
        rows += [
            ("model", found["model"]),
            ("ids with a token", f"{found['entries']:,}, the last is {found['last_id']:,}"),
        ]
        rows += [(name.replace("_", "-"), kind) for name, kind in found["parts"].items()]
        rows += [
            ("padding", f"{pad['direction']}, {pad['pad_token']} {pad['pad_id']}") for pad in _some(found["padding"])
        ]
    elif "kind" in found:
        rows.append(("file", "none"))
    for role, ids in found.get("roles", {}).items():
        rows.append((role, ", ".join(map(str, ids))))
    for number, text in islice(found.get("special", {}).items(), _SHOWN_SPECIAL):
        rows.append((f"special {number}", text))
    more = len(found.get("special", {})) - _SHOWN_SPECIAL
    if more > 0:
        rows.append(("special", f"and {more:,} more"))
    print_heading(found.get("name") or found["source"])
    print_pairs(rows, left=2)


_SHOWN_SPECIAL = 20


def _some(value: Any) -> list[Any]:
    return [] if value is None else [value]


def _padding(found: Mapping[str, Any]) -> str:
    extra = found["table_rows"] - found["vocab_size"]
    return f", {extra:,} of them padding, which is never drawn and is cut on export" if extra > 0 else ""
