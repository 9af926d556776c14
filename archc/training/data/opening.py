"""Files to shards once, and shards from a folder ever after."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from archc.errors import ArchcError
from archc.training.data.manifest import MANIFEST, DataForm, Ids, InputFile, Manifest, holds_shards
from archc.training.data.shards import SHARD_TOKENS
from archc.training.data.sources import Source, digest, list_sources
from archc.training.data.tokenising import Progress, tokenise
from archc.training.data.tokens import Tokens
from archc.training.data.vocabulary import Vocabulary

if sys.platform != "win32":
    import fcntl

_LOCK = "lock"
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def open_data(
    paths: Paths,
    *,
    vocabularies: Sequence[Vocabulary],
    cache: Path,
    form: DataForm | None = None,
    progress: Progress | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> Tokens:
    """Texts as ids: ``prepare_data``, then ``read_data``."""
    folder = prepare_data(
        paths, vocabularies=vocabularies, cache=cache, form=form, progress=progress, shard_tokens=shard_tokens
    )
    return read_data(folder, vocabularies=vocabularies)


def prepare_data(
    paths: Paths,
    *,
    vocabularies: Sequence[Vocabulary],
    cache: Path,
    known: Path | None = None,
    form: DataForm | None = None,
    progress: Progress | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> Path:
    """The folder of shards of files or folders: ``cache``, which one process of a machine makes while the others wait.

    What was made of the same contents before, there or in ``known``, is used again; other contents are tokenised anew, and then
    replace ``cache``, never ``known``. A folder of shards is taken as it is. ``vocabularies`` are those of ``vocabularies_of``,
    ``form`` what the model learns from (``data_form``).

    Raises:
        ArchcError: data that can't be used, a cache folder that holds something else, or a full disk; nothing is half written.
    """
    given = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if len(given) == 1 and holds_shards(given[0]):
        return given[0]
    if shards := [path for path in given if holds_shards(path)]:
        raise ArchcError(f"{shards[0]} holds shards, which are taken alone")
    if any(vocabulary.text is None for vocabulary in vocabularies):
        raise ArchcError(
            "texts need a tokenizer, and there is none: archc tokenizer train SPEC --data FILE makes one, and the spec names "
            "its file"
        )
    sources = list_sources(given)
    for place in (cache, known):
        if place is not None and _is_of(place, sources, vocabularies, progress):
            return place
    if cache.exists() and not _is_ours(cache):
        raise ArchcError(f"{cache} is there and holds no shards; choose another place for them")
    _make(cache, sources, vocabularies, form, progress, shard_tokens)
    return cache


def read_data(folder: Path, *, vocabularies: Sequence[Vocabulary]) -> Tokens:
    """The shards in a folder, for a model of these vocabularies.

    Raises:
        ArchcError: the folder is not whole, or was made for other vocabularies.
    """
    tokens = Tokens(folder)
    found = tokens.manifest
    # Documents are read by what predicts them, the last stack.
    read = vocabularies[-len(found.vocabularies) :]
    if len(read) < len(found.vocabularies):
        read = [vocabularies[-1]] * len(found.vocabularies)
    for ids, largest, vocabulary in zip(found.vocabularies, found.largest_id, read, strict=True):
        if misfit := ids.misfit(vocabulary):
            raise ArchcError(f"{folder} {misfit}; make it again from the texts")
        if largest >= vocabulary.num_ids:
            raise ArchcError(
                f"{folder}: a vocabulary that does not match: it holds the id {largest}, and the spec has "
                f"{vocabulary.num_ids} ids"
            )
    return tokens


def _is_ours(cache: Path) -> bool:
    return cache.is_dir() and (holds_shards(cache) or not any(cache.iterdir()))


def _is_of(
    cache: Path, sources: Sequence[Source], vocabularies: Sequence[Vocabulary], progress: Progress | None
) -> bool:
    """Whether a cache was made of these files; those with another time, and the same size, are read to know."""
    if not holds_shards(cache):
        return False
    try:
        found = Tokens(cache).manifest
    except ArchcError:
        return False
    if found.vocabularies != tuple(Ids.of(each) for each in vocabularies[-len(found.vocabularies) :]):
        return False
    facts = [(source.name, source.size_bytes) for source in sources]
    if facts != [(file.path, file.size_bytes) for file in found.inputs]:
        return False
    pairs = list(zip(sources, found.inputs, strict=True))
    old = [(source, file) for source, file in pairs if source.mtime_ns != file.mtime_ns]
    for number, (source, file) in enumerate(old):
        if progress is not None:
            progress(f"comparing {source.name}", number, len(old))
        if digest(source) != file.sha256:
            return False
    if old:
        _touch(cache, found, tuple(source.record(file.sha256) for source, file in pairs))
    return True


def _touch(cache: Path, found: Manifest, inputs: tuple[InputFile, ...]) -> None:
    """Write down the times, so that contents are compared once. Where nothing can be written they are compared again."""
    with contextlib.suppress(OSError):
        _write_manifest(cache, found.model_copy(update={"inputs": inputs}))


def _make(
    cache: Path,
    sources: Sequence[Source],
    vocabularies: Sequence[Vocabulary],
    form: DataForm | None,
    progress: Progress | None,
    shard_tokens: int,
) -> None:
    try:
        with _stage(cache) as stage:
            made = tokenise(sources, vocabularies, stage, form=form, progress=progress, shard_tokens=shard_tokens)
            if not made.tokens:
                names = ", ".join(str(source.path) for source in sources[:3])
                raise ArchcError(f"{names}{', …' if len(sources) > 3 else ''}: no token comes of this data")
            _write_manifest(stage, made)
    except OSError as error:
        raise ArchcError(
            f"{cache}: the data can't be written there: {error.strerror or error}; nothing was kept. Free some space, or "
            "choose another place"
        ) from error


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    temporary = folder / f".{MANIFEST}.{secrets.token_hex(4)}"
    try:
        temporary.write_text(manifest.model_dump_json(indent=1), "utf-8")
        os.replace(temporary, folder / MANIFEST)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def folder_beside(place: Path) -> Generator[Path]:
    """An empty folder beside a place. ``put_at`` may move it; else it is removed, by the next process if this one is killed."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(place)
    stage = _beside(place)
    stage.mkdir()
    try:
        with _held(stage):
            yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def put_at(place: Path, stage: Path) -> None:
    """Move a folder of ``folder_beside`` to a place that is free."""
    os.rename(stage, place)
    (place / _LOCK).unlink()


@contextmanager
def _stage(cache: Path) -> Generator[Path]:
    """A folder beside ``cache`` that becomes it when the block ends well."""
    with folder_beside(cache) as stage:
        yield stage
        if cache.exists():
            old = _beside(cache)
            (cache / _LOCK).touch()
            os.rename(cache, old)
            put_at(cache, stage)
            shutil.rmtree(old, ignore_errors=True)
        else:
            put_at(cache, stage)


def _beside(cache: Path) -> Path:
    return cache.with_name(f".{cache.name}.{secrets.token_hex(4)}")


@contextmanager
def _held(stage: Path) -> Generator[None]:
    """A lock that the system gives back however this process ends."""
    # Under its name only when it is held: another process removes folders whose lock it can have.
    unheld = stage / f".{_LOCK}"
    with unheld.open("wb") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        unheld.rename(stage / _LOCK)
        yield


def _remove_stale(cache: Path) -> None:
    """What killed runs left: folders whose lock nobody holds. Where there are no such locks they stay."""
    if sys.platform == "win32":
        return
    for lock in cache.parent.glob(f".{cache.name}.*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
