"""The weights of a run as a model folder, as ``archc build`` writes one: from any checkpoint, of any world, in one process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archc.checkpoint.reading import WHOLE, read_json
from archc.checkpoint.staging import staged
from archc.checkpoint.tensors import DTYPES as ARRAY_DTYPES
from archc.checkpoint.tensors import size_bytes
from archc.checkpoint.writing import Writer
from archc.errors import ArchcError
from archc.expansion import as_graph
from archc.graph.graph import Graph, resolve_dtype
from archc.graph.lockfile import to_text
from archc.spec.load import load_spec
from archc.spec.resolved import resolved
from archc.torch_backend.context import torch_dtype
from archc.training.checkpoint_files import MANIFEST, Checkpoint, at_step, listed
from archc.training.checkpoint_writer import DTYPES
from archc.training.checkpoints import read
from archc.training.run_folder import SOURCE_TOKENIZER, SPEC, TOKENIZER, RunFolder, spec_hash
from archc.training.state import MODEL
from archc.units import dtype_name

GRAPH, TRAINED = "graph.json", "trained.json"
"""Beside the weights: the lockfile, and which run and step they are of."""
_ONE_FILE_BYTES = 1 << 62
_AT_ONCE_BYTES = 1 << 28
"""So much is held, or one tensor that is larger."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: weights of step ``step`` of a run, in ``dtype`` but for those whose dtype the graph fixes."""

    output: str
    run: str
    step: int
    dtype: str
    weights: int
    tensors: int
    weight_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def export_weights(
    source: str | Path,
    out: str | Path,
    *,
    step: int | None = None,
    dtype: str = "float32",
    progress: Progress | None = None,
) -> Exported:
    """Write ``spec.yaml``, ``graph.json``, ``model.safetensors`` and the run's ``tokenizer.json`` from a run's checkpoint.

    ``source`` is a run, of which the checkpoint of ``step`` is taken or the newest, or a checkpoint in one. Optimizer states
    are not read. The folder appears as a whole; an earlier export there is replaced.

    Raises:
        ArchcError: there is no such checkpoint, it is damaged, or the folder can't be written.
    """
    place = Path(os.path.abspath(source))
    is_checkpoint = (place / MANIFEST).is_file()
    run = RunFolder.open(place.parent.parent if is_checkpoint else place)
    found = Checkpoint.open(place if is_checkpoint else at_step(run.checkpoints, step))
    graph = as_graph(run.spec)
    if spec_hash(graph) != run.settings.get("spec_sha256"):
        raise ArchcError(f"{run.spec} is not the spec that was trained: it was changed, or plugins were")
    chosen = dtype_name(dtype)
    wanted = _wanted(graph, chosen)
    problems = found.problems()
    stored = {name.removeprefix(MODEL) for name in found.tensors if name.startswith(MODEL)}
    problems += [f"{name} is not in it" for name in wanted if name not in stored]
    problems += [f"{name} is no weight of {graph.name}" for name in stored if name not in wanted]
    for name, (_, shape) in wanted.items():
        if name in stored and (other := found.tensors[MODEL + name][1]) != shape:
            problems.append(f"{name} is {list(other)}, the model's is {list(shape)}")
    if problems:
        raise ArchcError(f"{found.path} can't be exported:\n  {listed(problems)}")
    target = Path(os.path.abspath(out))
    with staged(target, _earlier_files) as stage:
        weight_bytes = _write(found, wanted, graph, stage, progress)
        (stage / SPEC).write_text(_spec_text(run), "utf-8")
        (stage / GRAPH).write_text(to_text(graph), "utf-8")
        for name in (TOKENIZER, SOURCE_TOKENIZER):
            if (run.path / name).is_file():
                shutil.copyfile(run.path / name, stage / name)
        files = sorted(entry.name for entry in stage.iterdir())
        told = {"run": str(run.path), "step": found.step, "dtype": chosen, "meta": dict(found.meta), "files": files}
        (stage / TRAINED).write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    return Exported(str(out), str(run.path), found.step, chosen, len(wanted), len(wanted), weight_bytes)


def _spec_text(run: RunFolder) -> str:
    """The run's spec, which names the tokenizers that lie beside it, so that an export finds them wherever the folder goes."""
    spec = load_spec(run.spec)
    (reading, reader), *_ = stacks = list(spec.stacks().items())
    named: dict[str, str] = {}
    for (section, stack), name in (((reading, reader), SOURCE_TOKENIZER), (stacks[-1], TOKENIZER)):
        kind = stack.tokenizer or spec.tokenizer
        says_all = kind.has_file() and getattr(kind, "file", None) is None
        if (run.path / name).is_file() and "file" in type(kind).model_fields and not says_all:
            named[f"{section}.tokenizer.file" if stack.tokenizer is not None else "tokenizer.file"] = name
    if not named:
        return run.spec.read_text("utf-8")
    return resolved(run.spec, tuple(f"{path}={name}" for path, name in named.items())).to_yaml()


def _wanted(graph: Graph, dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> dtype as safetensors calls it, and shape."""
    return {
        name: (DTYPES[torch_dtype(resolve_dtype(param.dtype, dtype))], tuple(param.shape))
        for name, param in graph.params().items()
    }


def _write(
    found: Checkpoint,
    wanted: dict[str, tuple[str, tuple[int, ...]]],
    graph: Graph,
    stage: Path,
    progress: Progress | None,
) -> int:
    by_name = {word: dtype for dtype, word in DTYPES.items()}
    writer = Writer(
        stage,
        # The widest first, so that each begins where its dtype may.
        dict(sorted(wanted.items(), key=lambda item: (-ARRAY_DTYPES[item[1][0]].itemsize, item[0]))),
        shard_bytes=_ONE_FILE_BYTES,
        metadata={"format": "pt", "archc_name": graph.name},
        whole=WHOLE,
    )
    done = 0
    try:
        for names in _portions(wanted):
            held = {name: torch.empty(wanted[name][1], dtype=by_name[wanted[name][0]]) for name in names}
            read(found, {f"{MODEL}{name}": tensor for name, tensor in held.items()})
            for name, tensor in held.items():
                word, shape = wanted[name]
                writer.put(name, _bytes(tensor).view(ARRAY_DTYPES[word]).reshape(shape))
                done += 1
                if progress is not None:
                    progress(name, done, len(wanted))
    finally:
        writer.close()
    return writer.total_bytes


def _portions(wanted: dict[str, tuple[str, tuple[int, ...]]]) -> Iterator[list[str]]:
    held: list[str] = []
    size = 0
    for name, tensor in wanted.items():
        if held and size + size_bytes(*tensor) > _AT_ONCE_BYTES:
            yield held
            held, size = [], 0
        held.append(name)
        size += size_bytes(*tensor)
    if held:
        yield held


def _bytes(tensor: Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _earlier_files(out: Path) -> set[str]:
    """Names of the files of an earlier export, which may be replaced where there is nothing else."""
    names = {entry.name for entry in out.iterdir()}
    told = read_json(out / TRAINED).get("files") if TRAINED in names else None
    if not isinstance(told, list) or names - {TRAINED, *map(str, told)}:
        raise ArchcError(f"{out} holds something else than the weights of a run; name another folder")
    return names
