"""A checkpoint's tensors under archc's names, and back: one tensor in memory at a time, every bit kept."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from archc.checkpoint.importing import Imported, import_data
from archc.checkpoint.layouts import to_ours, to_theirs
from archc.checkpoint.plan import Plan, match, plan
from archc.checkpoint.reading import CONFIG, read_json
from archc.checkpoint.tensors import Shape, Stored, Writer, opened
from archc.errors import ArchcError
from archc.graph.graph import Graph

Progress = Callable[[str, int, int], None]
SHARD_BYTES = 5 * 10**9
ORIGIN, SPEC = "checkpoint.json", "spec.yaml"
"""Beside archc's weights: the configuration that they came with, and how their names began."""
_KEPT = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)


def to_archc(
    source: Path,
    out: Path,
    imported: Imported,
    *,
    allow_unused: Sequence[str] = (),
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write ``model.safetensors`` or shards, ``spec.yaml`` and ``checkpoint.json``; figures of what was done.

    Raises:
        ArchcError: tensors are missing, left over or misshapen, all of them listed; nothing is written then.
    """
    with opened(source) as stored:
        found = planned(imported)
        names, problems = match(
            found,
            stored.shapes,
            dropped=imported.checkpoint.dropped,
            prefix=imported.checkpoint.optional_prefix,
            allow_unused=allow_unused,
        )
        dtypes = _dtypes_here(found, names, stored, problems)
        _raise(source, problems)
        shapes = shapes_of(imported.graph)
        tensors = {name: (dtypes[name], shapes[name]) for name in shapes}
        with staged(out) as stage:
            writer = Writer(stage, tensors, shard_bytes=shard_bytes, metadata={"format": "pt"})
            try:
                for number, part in enumerate(found.parts, 1):
                    arrays = to_ours(part.layout, stored.read(names[part.theirs]), part.shapes)
                    for name, array in zip(part.ours, arrays, strict=True):
                        writer.put(name, array, slice_at=part.expert)
                    if progress is not None:
                        progress(part.theirs, number, len(found.parts))
            finally:
                writer.close()
            (stage / SPEC).write_text(imported.text, "utf-8")
            origin = {"config": dict(imported.config), "without_prefix": _lacks_prefix(imported, names)}
            (stage / ORIGIN).write_text(json.dumps(origin, indent=2, ensure_ascii=False) + "\n", "utf-8")
            _copy_kept(source if source.is_dir() else source.parent, stage)
    return {"tensors": len(found.parts), "weights": len(shapes), "left_out": len(stored.shapes) - len(found.parts)}


def to_hf(
    source: Path, out: Path, *, shard_bytes: int = SHARD_BYTES, progress: Progress | None = None
) -> dict[str, int]:
    """The folder that ``to_archc`` read, from what it wrote: the same names, shapes, bits and configuration.

    Raises:
        ArchcError: ``checkpoint.json`` is missing, or the weights don't fit it.
    """
    origin = read_json(source / ORIGIN)
    config = origin.get("config")
    if not isinstance(config, dict):
        raise ArchcError(f"{source / ORIGIN} holds no configuration; it is written by archc convert")
    imported = import_data(config, name="checkpoint", source=str(source / ORIGIN))
    found = planned(imported)
    with opened(source) as stored:
        problems = list(found.problems)
        shapes = shapes_of(imported.graph)
        problems += [f"{name} is missing" for name in shapes if name not in stored.shapes]
        problems += [f"{name} is no weight of the model" for name in stored.shapes if name not in shapes]
        problems += [
            f"{name} is {list(stored.shapes[name])}, not {list(shape)}"
            for name, shape in shapes.items()
            if name in stored.shapes and stored.shapes[name] != shape
        ]
        _raise(source, problems)
        prefix = imported.checkpoint.optional_prefix if origin.get("without_prefix") else ""
        names = {part.theirs: part.theirs.removeprefix(prefix) for part in found.parts}
        tensors = {names[part.theirs]: (_dtype_there(part.ours, stored), part.shape_there) for part in found.parts}
        with staged(out) as stage:
            writer = Writer(stage, tensors, shard_bytes=shard_bytes, metadata={"format": "pt"})
            try:
                for number, part in enumerate(found.parts, 1):
                    arrays = [
                        stored.read(name) if part.expert is None else stored.slice(name, part.expert)
                        for name in part.ours
                    ]
                    writer.put(names[part.theirs], to_theirs(part.layout, arrays))
                    if progress is not None:
                        progress(part.theirs, number, len(found.parts))
            finally:
                writer.close()
            (stage / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
            _copy_kept(source, stage)
    return {"tensors": len(found.parts), "weights": len(shapes)}


def planned(imported: Imported) -> Plan:
    """What every weight of an imported model is filled by."""
    return plan(imported.checkpoint.rules(imported.graph, imported.config), shapes_of(imported.graph))


def shapes_of(graph: Graph) -> dict[str, Shape]:
    """Name -> shape of every weight, in the order of the graph."""
    return {name: tuple(param.shape) for name, param in graph.params().items()}


def _lacks_prefix(imported: Imported, names: Mapping[str, str]) -> bool:
    return bool(imported.checkpoint.optional_prefix) and any(plain != name for plain, name in names.items())


def _dtypes_here(found: Plan, names: Mapping[str, str], stored: Stored, problems: list[str]) -> dict[str, str]:
    """dtype of every weight: that of the tensors that fill it, which must agree."""
    dtypes: dict[str, str] = {}
    for part in found.parts:
        dtype = stored.dtypes.get(names[part.theirs])
        for name in part.ours:
            if dtype is not None and dtypes.setdefault(name, dtype) != dtype:
                problems.append(f"{names[part.theirs]} is {dtype}, other parts of {name} are {dtypes[name]}")
    return dtypes


def _dtype_there(ours: Sequence[str], stored: Stored) -> str:
    dtypes = {stored.dtypes[name] for name in ours}
    if len(dtypes) != 1:
        raise ArchcError(
            f"{', '.join(ours)} are one tensor there, and have several dtypes here: {', '.join(sorted(dtypes))}"
        )
    return dtypes.pop()


def _raise(source: Path, problems: Sequence[str]) -> None:
    if problems:
        lines = "\n  ".join(problems)
        raise ArchcError(f"{source}: {len(problems)} tensors don't fit the model\n  {lines}")


def _copy_kept(source: Path, stage: Path) -> None:
    for name in _KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, stage / name)


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that becomes it when the block ends well; ``out`` must be absent or empty.

    Raises:
        ArchcError: ``out`` holds something, or can't be written.
    """
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ArchcError(f"{out} is there already and not empty; name another folder")
        out.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ArchcError(f"{out} can't be written: {error.strerror or error}") from error
    try:
        yield stage
        if out.exists():
            out.rmdir()
        os.chmod(stage, 0o755)
        stage.rename(out)
    except BaseException as error:
        shutil.rmtree(stage, ignore_errors=True)
        if isinstance(error, OSError):
            raise ArchcError(f"{out} can't be written: {error.strerror or error}") from error
        raise


def summary(figures: Mapping[str, Any]) -> str:
    """What was done, in words."""
    return ", ".join(f"{value:,} {key.replace('_', ' ')}" for key, value in figures.items() if value)
