"""A report of one or several specs as one HTML file that needs nothing else: the whole of ``archc report``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from archc.errors import ArchcError
from archc.estimation.estimate import DEFAULT_LENGTH_TOKENS
from archc.reporting.model import Model, default_length, model_of
from archc.reporting.page import page
from archc.spec.load import load_spec
from archc.spec.schema import Spec
from archc.units import SPEC_DTYPES, dtype_name

Source = Spec | str | PathLike[str]

MOST_SPECS = 16
"""More columns nobody reads, and the page would grow without an end."""


def report(
    specs: Source | Sequence[Source],
    path: str | PathLike[str],
    *,
    batch_size: int = 1,
    max_model_len: int | None = None,
    source_len: int | None = None,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
    block_size: int | None = None,
    overrides: Sequence[str] = (),
) -> Path:
    """Write the page at ``path``; a file that is there is replaced once the new one is whole.

    The options are where the page's controls stand at first, as those of ``archc.estimate``; ``max_model_len``, in tokens, is by
    default the fewest positions that a spec states. ``overrides`` are ``path=value`` on every spec given by name or file.

    Raises:
        ArchcError: a spec has problems, an option is wrong, or the place can't be written.
    """
    sources = [specs] if isinstance(specs, str | PathLike | Spec) else list(specs)
    out = Path(path)
    problems = [*_problems(sources, out), *_option_problems(batch_size, max_model_len, source_len, block_size)]
    for name, value in (("dtype", dtype), ("kv_cache_dtype", kv_cache_dtype)):
        if value is not None and dtype_name(value) not in SPEC_DTYPES:
            problems.append(f"{name} {value!r} is unknown; known: {', '.join(SPEC_DTYPES)}")
    if problems:
        raise ArchcError("\n".join(problems))
    models = [_model(source, overrides) for source in sources]
    length = max_model_len or default_length(models) or DEFAULT_LENGTH_TOKENS
    settings = {
        "batch": str(batch_size),
        "length": str(length),
        "source": None if source_len is None else str(source_len),
        "block": None if block_size is None else str(block_size),
        "dtype": None if dtype is None else dtype_name(dtype),
        "kvDtype": None if kv_cache_dtype is None else dtype_name(kv_cache_dtype),
    }
    _write(out, page(models, settings))
    return out


def _problems(sources: Sequence[Source], out: Path) -> list[str]:
    found: list[str] = []
    if not sources:
        found.append("there is no spec to report on")
    if len(sources) > MOST_SPECS:
        found.append(f"a report compares at most {MOST_SPECS} specs (found {len(sources)})")
    if out.suffix.lower() not in (".html", ".htm"):
        found.append(f"{out}: a report is written as .html")
    if out.is_dir():
        found.append(f"{out} is a folder; a report is a file, as in {out / 'report.html'}")
    elif not out.absolute().parent.is_dir():
        found.append(f"{out.parent} is no folder, so {out.name} can't be written there")
    return found


def _option_problems(batch_size: int, length: int | None, source: int | None, block: int | None) -> list[str]:
    stated = {"batch_size": batch_size, "max_model_len": length, "source_len": source, "block_size": block}
    return [f"{name} should be at least 1 (found {n})" for name, n in stated.items() if n is not None and n < 1]


def _model(source: Source, overrides: Sequence[str]) -> Model:
    if isinstance(source, Spec):
        return model_of(source, source.name)
    # Only the file's name: a page is sent to others, whom the folders of its writer don't concern.
    return model_of(load_spec(Path(source), overrides), os.path.basename(os.fspath(source)))


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise ArchcError(f"{path} can't be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
