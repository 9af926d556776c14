"""Weights in and out of safetensors, by the graph's names: each tied weight once, nothing missing, nothing left over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from archc.checkpoint.filling import Piece, foreign, is_foreign
from archc.checkpoint.tensors import files_of
from archc.errors import ArchcError
from archc.torch_backend.build import graph_of

Progress = Callable[[str, int, int], None]
_INTEGERS = {2: np.int16, 4: np.int32, 8: np.int64}
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
}


def materialise(model: nn.Module, device: str | torch.device) -> nn.Module:
    """Storage for every weight that is on the meta device, not initialised; tied weights stay tied."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None and tensor.is_meta:
                    if id(tensor) not in made:
                        empty: Any = torch.empty_like(tensor, device=device)
                        made[id(tensor)] = (
                            nn.Parameter(empty, tensor.requires_grad) if table is module._parameters else empty
                        )
                    table[name] = made[id(tensor)]
    return model


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Name -> weight as a file holds them: the graph's names, each tied weight once, buffers included."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: tensors[name] for name in graph_of(model).params()}


def save_weights(model: nn.Module, path: str | Path) -> Path:
    """Write a safetensors file beside ``path``, then rename it, so that an earlier file is whole until the new one is."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    try:
        tensors = {name: tensor.detach().contiguous() for name, tensor in weights_of(model).items()}
        save_file(tensors, str(partial), metadata={"format": "pt", "archc_name": graph_of(model).name})
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def load_weights(model: nn.Module, path: str | Path, *, progress: Progress | None = None) -> nn.Module:
    """Fill a model from a safetensors file, a folder of shards with an index, or one as transformers saves it.

    The last is known by its ``config.json``, and must be of a family that ``archc import`` reads. One tensor is held at a
    time, and converted to the dtype of the weight it fills. A model on the meta device must be materialised first.

    Raises:
        ArchcError: names or shapes don't fit; every one is listed, and no weight was changed.
    """
    wanted = weights_of(model)
    if is_foreign(Path(path)):
        return _fill_from_foreign(model, Path(path), wanted, progress)
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        problems: list[str] = []
        for name, handle in _open(Path(path), stack):
            if name in found:
                problems.append(f"{name} is in more than one file")
            found[name] = handle
        problems += [f"{name} is missing" for name in wanted if name not in found]
        problems += [f"{name} is no weight of {graph_of(model).name}" for name in found if name not in wanted]
        for name, tensor in wanted.items():
            if name in found and (shape := list(found[name].get_slice(name).get_shape())) != list(tensor.shape):
                problems.append(f"{name} is {shape}, the model's is {list(tensor.shape)}")
            if tensor.is_meta:
                problems.append(f"{name} is on the meta device: materialise the model first")
        if problems:
            raise ArchcError(f"{path}: {len(problems)} weights don't fit:\n  " + "\n  ".join(problems))
        with torch.no_grad():
            for number, (name, tensor) in enumerate(wanted.items(), 1):
                tensor.copy_(found[name].get_tensor(name))
                if progress is not None:
                    progress(name, number, len(wanted))
    return model


def _fill_from_foreign(model: nn.Module, path: Path, wanted: dict[str, Tensor], progress: Progress | None) -> nn.Module:
    on_meta = [f"{name} is on the meta device: materialise the model first" for name in wanted if wanted[name].is_meta]
    if on_meta:
        raise ArchcError(f"{path}: {len(on_meta)} weights don't fit:\n  " + "\n  ".join(on_meta))
    done: set[str] = set()
    with foreign(path, graph_of(model)) as checkpoint, torch.no_grad():
        for piece in checkpoint.pieces():
            _put(piece, wanted[piece.name] if piece.at is None else wanted[piece.name][piece.at])
            done.add(piece.name)
            if progress is not None:
                progress(piece.name, len(done), len(wanted))
    return model


def _put(piece: Piece, target: Tensor) -> None:
    dtype = _DTYPES[piece.dtype]
    # numpy has no bfloat16 that torch would take, so bits go over as integers.
    if piece.array is None and target.dtype == dtype and target.device.type == "cpu" and target.is_contiguous():
        piece.read_into(target.detach().view(-1).view(torch.uint8).numpy().data)
        return
    array = np.ascontiguousarray(piece.read())
    bits = torch.from_numpy(array.view(_INTEGERS[array.dtype.itemsize]))
    target.copy_(bits.view(dtype).reshape(target.shape))


def _open(path: Path, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    """(tensor name, open file that holds it)."""
    for file in files_of(path):
        try:
            handle: Any = stack.enter_context(safe_open(str(file), framework="pt"))
        except (OSError, SafetensorError) as error:
            raise ArchcError(f"{file} can't be read as safetensors: {error}") from error
        for name in handle.keys():  # noqa: SIM118 (a handle is no mapping)
            yield name, handle
