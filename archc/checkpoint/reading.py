"""A checkpoint folder or a config.json as plain data, read safely: sizes bounded, no code, nothing outside the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from archc.errors import ArchcError

CONFIG = "config.json"
MAX_CONFIG_BYTES = 16 << 20


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


def read_json(file: Path) -> dict[str, Any]:
    """A JSON mapping of bounded size.

    Raises:
        ArchcError: it can't be read as one.
    """
    try:
        size = file.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise ArchcError(f"{file} has {size:,} bytes; a configuration has at most {MAX_CONFIG_BYTES:,}")
        data = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ArchcError(f"{file} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ArchcError(f"{file} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ArchcError(f"{file} should hold a mapping (found {type(data).__name__})")
    return data
