"""``model.onnx`` and ``model.onnx.data``: where every weight lies, and its bytes, a few MiB in memory at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from archc.errors import ArchcError
from archc.units import gib

MODEL, DATA = "model.onnx", "model.onnx.data"
_INLINE_BYTES = 1024
_ALIGNMENT_BYTES = 64
"""A cache line: kernels may read a mapped weight where it lies."""
_PAGE_BYTES, _PAGED_BYTES = 4096, 1 << 20
"""Tensors above 1 MiB begin a page, as the format asks of files that are mapped; smaller ones would waste it."""
Progress = Callable[[str, int, int], None]
"""Called with a tensor's name, its number from 1 and how many there are."""


def write(model: ir.Model, folder: Path, progress: Progress | None = None, *, has_data: bool = True) -> int:
    """``model.onnx`` with its weights in ``model.onnx.data``; with ``has_data`` false they have places there and no bytes.

    Returns the bytes of the data file. Places depend on names, shapes and dtypes alone, so that another export can write the
    data later. Small constants (shapes, axes) stay in the model file, where shape inference can read them.

    Raises:
        ArchcError: the disk has no room, or a weight can't be read or held.
        OSError: writing failed all the same.
    """
    return write_files({MODEL: model}, folder, progress, has_data=has_data)


def write_files(
    models: Mapping[str, ir.Model], folder: Path, progress: Progress | None = None, *, has_data: bool = True
) -> int:
    """``write`` of several models, by the names of their files, over one data file that holds a weight of both once."""
    stored: dict[Hashable, list[ir.Value]] = {}
    for name, model in models.items():
        for value in model.graph.initializers.values():
            if (tensor := _external(value)) is not None:
                stored.setdefault(_identity(name, tensor), []).append(value)
    tensors = [tensor for values in stored.values() if (tensor := values[0].const_value) is not None]
    places = _places(tensors, folder)
    data_bytes = max(((place.offset or 0) + (place.length or 0) for place in places), default=0)
    if has_data:
        _require_disk(folder, data_bytes)
        _write_data(tensors, places, folder / DATA, progress)
    for values, place in zip(stored.values(), places, strict=True):
        for value in values:
            value.const_value = place
    for name, model in models.items():
        try:
            ir.save(model, folder / name)
        except OSError as error:
            raise _naming(error, folder / name) from error
    return data_bytes


def _identity(file: str, tensor: ir.TensorProtocol) -> Hashable:
    """Equal for two weights that are one: lowerings name them by what they are made from, and how."""
    if isinstance(tensor, ir.LazyTensor):
        return (tensor.name, tensor.dtype, tuple(tensor.shape.numpy()))
    return (file, id(tensor))


def _external(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer whose bytes lie in the data file: every weight, and constants that are not small."""
    tensor = value.const_value
    assert tensor is not None, f"{value.name} has no value"
    return tensor if isinstance(tensor, ir.LazyTensor) or tensor.nbytes > _INLINE_BYTES else None


def _places(tensors: Sequence[ir.TensorProtocol], folder: Path) -> list[ir.ExternalTensor]:
    """Where each lies, in their order."""
    places: list[ir.ExternalTensor] = []
    end = 0
    for tensor in tensors:
        step = _PAGE_BYTES if tensor.nbytes > _PAGED_BYTES else _ALIGNMENT_BYTES
        offset = -(-end // step) * step
        end = offset + tensor.nbytes
        assert isinstance(tensor.shape, ir.Shape)
        place = ir.ExternalTensor(
            DATA, offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=tensor.name or "", base_dir=folder
        )
        places.append(place)
    return places


def _require_disk(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise ArchcError(
            f"the weights take {gib(needed_bytes)}, the disk of {folder.parent} has {gib(free_bytes)} free"
        )


def _write_data(
    tensors: Sequence[ir.TensorProtocol], places: Sequence[ir.ExternalTensor], path: Path, progress: Progress | None
) -> None:
    try:
        with path.open("wb") as file:
            for number, (tensor, place) in enumerate(zip(tensors, places, strict=True), 1):
                if progress is not None:
                    progress(tensor.name or "", number, len(tensors))
                file.seek(place.offset or 0)
                tensor.tofile(file)  # pyright: ignore[reportAttributeAccessIssue] - every tensor has it, the protocol not
    except OSError as error:
        raise _naming(error, path) from error


def _naming(error: OSError, path: Path) -> OSError:
    """The same error with the file's name in it, which a failed write lacks."""
    return error if error.filename else OSError(error.errno, error.strerror or str(error), str(path))
