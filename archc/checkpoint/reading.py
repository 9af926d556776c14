"""A checkpoint folder or a config.json as plain data, read safely: sizes bounded, no code, nothing outside the folder."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from archc.errors import ArchcError

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
MAX_CONFIG_BYTES = 16 << 20
MAX_INDEX_BYTES = 64 << 20
MAX_TOKENIZER_BYTES = 256 << 20


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a file or folder.

    Raises:
        ArchcError: it is not there, too large, or no JSON mapping with a ``model_type``.
    """
    file = path / CONFIG if path.is_dir() else path
    data = read_json(file)
    if not isinstance(data.get("model_type"), str):
        raise ArchcError(f"{file}: model_type is missing; it names the family")
    return data


def read_json(file: Path, *, most_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """A JSON mapping of bounded size.

    Raises:
        ArchcError: it can't be read as one.
    """
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise ArchcError(f"{file} is no file")
        if status.st_size > most_bytes:
            raise ArchcError(f"{file} has {status.st_size:,} bytes; more than {most_bytes:,} are not read")
        data = json.loads(file.read_text("utf-8"), parse_constant=_constant)
    except OSError as error:
        raise ArchcError(f"{file} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ArchcError(f"{file} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ArchcError(f"{file} should hold a mapping (found {type(data).__name__})")
    return data


def has_tensors(folder: Path) -> bool:
    """Whether a folder holds safetensors, or the index of some."""
    return (folder / INDEX).is_file() or (folder / WHOLE).is_file()


def _constant(text: str) -> float:
    """A number that JSON lacks, as older files write it."""
    if text == "NaN":
        raise ValueError("NaN is no value")
    return float(text)


def is_plain(name: str) -> bool:
    """Whether it names a file of the folder itself, on every system."""
    return bool(name) and name not in (".", "..") and not any(sign in name for sign in "/\\:\0")


def count_ids(folder: Path) -> int | None:
    """The largest id of a folder's ``tokenizer.json``, plus one; None where it has none, or says it otherwise.

    Raises:
        ArchcError: the file can't be read.
    """
    file = folder / TOKENIZER
    if not file.is_file():
        return None
    data = read_json(file, most_bytes=MAX_TOKENIZER_BYTES)
    model, added = data.get("model"), data.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids: list[Any] = []
    if isinstance(vocabulary, dict):
        ids += vocabulary.values()
    elif isinstance(vocabulary, list):
        # A list of pieces: an id is a place in it.
        ids.append(len(vocabulary) - 1)
    if isinstance(added, list):
        ids += [entry.get("id") for entry in added if isinstance(entry, dict)]
    return max((number for number in ids if isinstance(number, int)), default=-1) + 1 or None
