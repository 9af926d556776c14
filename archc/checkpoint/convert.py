"""A checkpoint's tensors under archc's names, and back: one tensor in memory at a time, every bit kept."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archc.checkpoint.family import PUBLISHED
from archc.checkpoint.importing import Imported, import_data
from archc.checkpoint.layouts import to_ours, to_theirs
from archc.checkpoint.opening import Checked, Model, checked, raise_all, shapes_of
from archc.checkpoint.plan import Part
from archc.checkpoint.reading import CONFIG, read_json
from archc.checkpoint.rules import Naming, canonical, renamed
from archc.checkpoint.staging import ORIGIN, SPEC, digest, staged
from archc.checkpoint.tensors import Stored, legal_dtypes, opened
from archc.checkpoint.writing import SHARD_BYTES, Writer
from archc.errors import ArchcError

Progress = Callable[[str, int, int], None]
DERIVED = "derived.safetensors"
"""Beside archc's weights: tensors that hold none, and that the checkpoint is to have again."""
_NEVER = 1 << 62
_KEPT = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, slots=True)
class Converted:
    """What was done: tensors of the checkpoint, weights of the model, their bytes, and tensors that were left out."""

    tensors: int
    weights: int
    weight_bytes: int
    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "tensors": self.tensors,
            "weights": self.weights,
            "weight_bytes": self.weight_bytes,
            "files": list(self.files),
            "left_out": list(self.left_out),
        }


def to_archc(
    source: Path,
    out: Path,
    imported: Imported,
    *,
    allow_unused: Sequence[str] = (),
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> Converted:
    """Write ``model.safetensors`` or shards, ``spec.yaml`` and ``checkpoint.json``.

    Raises:
        ArchcError: tensors are missing, left over or misshapen, all of them listed; nothing is written then.
    """
    with opened(source) as stored:
        found = checked(stored, Model.of(imported), allow_unused=allow_unused)
        shapes = shapes_of(imported.graph)
        tensors = {name: (found.dtypes[name], shapes[name]) for name in shapes}
        with staged(out) as stage:
            writer = Writer(stage, tensors, shard_bytes=shard_bytes, metadata={"format": "pt"})
            try:
                for number, part in enumerate(found.plan.parts, 1):
                    _move(part, found, stored, writer)
                    if progress is not None:
                        progress(part.theirs, number, len(found.plan.parts))
            finally:
                writer.close()
            _write_derived(stage, found, stored, imported)
            (stage / SPEC).write_text(imported.text, "utf-8")
            _copy_kept(source if source.is_dir() else source.parent, stage)
            files = tuple(sorted(file.name for file in stage.iterdir()))
            _write_json(stage / ORIGIN, _origin(imported, found, files))
    return Converted(len(found.plan.parts), len(shapes), writer.total_bytes, (*files, ORIGIN), (*found.match.unused,))


def _move(part: Part, found: Checked, stored: Stored, writer: Writer) -> None:
    name = found.match.names[part.theirs]
    if part.spans is not None:
        home = stored.homes[name]
        for span in part.spans:
            place = span.at * math.prod(writer.slots[span.name].shape[1:])
            writer.copy(span.name, home, count=span.count, from_element=span.start, to_element=place)
        return
    if part.by_slices is not None:
        # Experts that are one tensor there need not be in memory together.
        layout, shapes = part.by_slices
        for at in range(part.shapes[0][0]):
            for ours, array in zip(part.ours, to_ours(layout, stored.slice(name, at), shapes), strict=True):
                writer.put(ours, array, slice_at=at)
        return
    arrays = to_ours(part.layout, stored.read(name), part.shapes)
    starts = [None] * len(part.ours) if part.rows is None else [start for start, _ in part.rows]
    for ours, array, start in zip(part.ours, arrays, starts, strict=True):
        writer.put(ours, array, slice_at=part.expert, row_at=start)


def _origin(imported: Imported, found: Checked, files: Sequence[str]) -> dict[str, Any]:
    """What the way back needs, and what tells these files from the user's."""
    return {
        "files": list(files),
        "spec_sha256": digest(imported.text),
        "layout": found.layout,
        "naming": [list(pair) for pair in found.match.naming],
        "untied": imported.untied,
        "copies": dict(found.copies),
        "left_out": list(found.match.unused),
        "config": dict(imported.config),
    }


def to_hf(source: Path, out: Path, *, shard_bytes: int = SHARD_BYTES, progress: Progress | None = None) -> Converted:
    """The folder that ``to_archc`` read, from what it wrote: the same names, shapes, bits and configuration.

    Tensors that were left out on purpose stay left out.

    Raises:
        ArchcError: ``checkpoint.json`` is missing, or the weights don't fit it.
    """
    config, layout, naming, untied, copies, left_out = _read_origin(source)
    imported = import_data(config, name="checkpoint", source=str(source / ORIGIN), untied=untied)
    if layout not in imported.checkpoint.layouts(imported.graph, imported.config):
        raise ArchcError(f"{source / ORIGIN}: {imported.family} has no layout {layout!r}")
    if naming not in imported.checkpoint.namings():
        raise ArchcError(f"{source / ORIGIN}: {imported.family} has no such names")
    found = Model.of(imported).plan(layout)
    with opened(source) as stored, _derived(source) as derived:
        raise_all(source, [*found.problems, *_misfits(stored, imported)])
        names = {part.theirs: renamed(part.theirs, naming) for part in found.parts}
        tensors = {names[part.theirs]: (_dtype_there(part.ours, stored), part.shape_there) for part in found.parts}
        tensors |= {copy: tensors[of] for copy, of in copies.items() if of in tensors}
        sources = {names[part.theirs]: part for part in found.parts}
        sources |= {copy: sources[of] for copy, of in copies.items() if of in sources}
        tensors |= {name: (home.dtype, home.shape) for name, home in derived.homes.items()}
        with staged(out) as stage:
            writer = Writer(stage, tensors, shard_bytes=shard_bytes, metadata={"format": "pt"})
            try:
                for number, (name, part) in enumerate(sources.items(), 1):
                    _move_back(name, part, stored, writer)
                    if progress is not None:
                        progress(name, number, len(sources))
                for name, home in derived.homes.items():
                    writer.copy(name, home)
            finally:
                writer.close()
            _write_json(stage / CONFIG, config)
            _copy_kept(source, stage)
            files = tuple(sorted(file.name for file in stage.iterdir()))
    return Converted(len(sources), len(shapes_of(imported.graph)), writer.total_bytes, files, tuple(left_out))


def _move_back(name: str, part: Part, stored: Stored, writer: Writer) -> None:
    if part.spans is not None:
        for span in part.spans:
            home = stored.homes[span.name]
            place = span.at * math.prod(home.shape[1:])
            writer.copy(name, home, count=span.count, from_element=place, to_element=span.start)
        return
    if part.by_slices is not None:
        layout, _ = part.by_slices
        for at in range(part.shapes[0][0]):
            writer.put(name, to_theirs(layout, [stored.slice(ours, at) for ours in part.ours]), slice_at=at)
        return
    if part.rows is not None:
        arrays = [stored.rows(ours, *rows) for ours, rows in zip(part.ours, part.rows, strict=True)]
    else:
        arrays = [stored.read(ours) if part.expert is None else stored.slice(ours, part.expert) for ours in part.ours]
    writer.put(name, to_theirs(part.layout, arrays))


def _write_derived(stage: Path, found: Checked, stored: Stored, imported: Imported) -> None:
    """What transformers saves beside the weights and computes from the configuration, as it is, for the way back."""
    patterns = [re.compile(entry.pattern) for entry in imported.checkpoint.drops(imported.config) if entry.kept]
    names = [
        name
        for name in found.match.unused
        if any(pattern.fullmatch(canonical(name, found.match.naming)) for pattern in patterns)
    ]
    if not names:
        return
    tensors = {name: (stored.dtypes[name], stored.shapes[name]) for name in names}
    writer = Writer(stage, tensors, shard_bytes=_NEVER, metadata={"format": "pt"}, whole=DERIVED)
    try:
        for name in names:
            writer.copy(name, stored.homes[name])
    finally:
        writer.close()


def _derived(source: Path) -> AbstractContextManager[Stored]:
    file = source / DERIVED
    return opened(file) if file.is_file() else nullcontext(Stored(source, {}))


def _read_origin(source: Path) -> tuple[dict[str, Any], str, Naming, bool, dict[str, str], list[str]]:
    file = source / ORIGIN
    if not file.is_file():
        raise ArchcError(f"{source} has no {ORIGIN}; the way back starts from a folder that archc convert wrote")
    origin = read_json(file)
    config, naming, copies = origin.get("config"), origin.get("naming"), origin.get("copies")
    left_out, layout = origin.get("left_out"), origin.get("layout", PUBLISHED)
    is_sound = (
        isinstance(config, dict)
        and isinstance(layout, str)
        and isinstance(naming, list)
        and all(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in naming
        )
        and isinstance(copies, dict)
        and all(isinstance(of, str) for of in copies.values())
        and isinstance(left_out, list)
        and all(isinstance(name, str) for name in left_out)
    )
    if not is_sound:
        raise ArchcError(f"{file} is not as archc convert writes it")
    assert isinstance(config, dict)
    assert isinstance(naming, list)
    assert isinstance(copies, dict)
    assert isinstance(left_out, list)
    assert isinstance(layout, str)
    pairs = tuple((ours, theirs) for ours, theirs in naming)
    return config, layout, pairs, origin.get("untied") is True, copies, left_out


def _misfits(stored: Stored, imported: Imported) -> list[str]:
    shapes = shapes_of(imported.graph)
    return [
        *(f"{name} is missing" for name in shapes if name not in stored.shapes),
        *(f"{name} is no weight of the model" for name in stored.shapes if name not in shapes),
        *(
            f"{name} is {stored.dtypes[name]}; weights should be {', '.join(legal)}"
            for name, param in imported.graph.params().items()
            if name in stored.dtypes and stored.dtypes[name] not in (legal := legal_dtypes(param))
        ),
        *(
            f"{name} is {list(stored.shapes[name])}, not {list(shape)}"
            for name, shape in shapes.items()
            if name in stored.shapes and stored.shapes[name] != shape
        ),
    ]


def _dtype_there(ours: Sequence[str], stored: Stored) -> str:
    dtypes = {stored.dtypes[name] for name in ours}
    if len(dtypes) != 1:
        raise ArchcError(
            f"{', '.join(ours)} are one tensor there, and have several dtypes here: {', '.join(sorted(dtypes))}"
        )
    return dtypes.pop()


def _write_json(file: Path, data: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _copy_kept(source: Path, stage: Path) -> None:
    for name in _KEPT:
        if (source / name).is_file():
            shutil.copyfile(source / name, stage / name)
