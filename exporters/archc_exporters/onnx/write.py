"""Files on disk: written beside their destination, checked there, and moved into place when they are whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from archc.errors import ArchcError

MODEL, DATA = "model.onnx", "model.onnx.data"
_INLINE_BYTES = 1024
Progress = Callable[[str, int, int], None]
"""Called with a tensor's name, its number from 1 and how many there are."""


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder inside ``out`` whose files replace those of ``out`` when the block ends well, and vanish otherwise.

    Raises:
        ArchcError: ``out`` can't be made or written.
    """
    fresh = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".archc-export-", dir=out))
    except OSError as error:
        raise ArchcError(f"{out} can't be written: {error}") from error
    try:
        yield stage
        # The data first and the model last: a model file never stands beside data that is not whole.
        for path in sorted(stage.iterdir(), key=lambda path: (path.name == MODEL, path.name != DATA, path.name)):
            _move(path, out / path.name)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        if fresh and not any(out.iterdir()):
            out.rmdir()
        raise
    shutil.rmtree(stage, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    try:
        os.replace(source, target)
    except OSError as error:
        raise ArchcError(f"{target} can't be replaced: {error}") from error


def write(model: ir.Model, folder: Path, progress: Progress | None = None) -> None:
    """``model.onnx`` with its weights in ``model.onnx.data``, one tensor in memory at a time.

    Small constants (shapes, axes) stay in the model file, where shape inference can read them.

    Raises:
        ArchcError: the disk is full, or a weight can't be read or held.
    """
    stored = [value for value in model.graph.initializers.values() if _is_external(value)]
    tensors = [value.const_value for value in stored]

    def report(tensor: ir.TensorProtocol, info: ir.external_data.CallbackInfo) -> None:
        if progress is not None:
            progress(tensor.name or "", info.index + 1, info.total)

    try:
        external = ir.external_data.convert_tensors_to_external(
            [tensor for tensor in tensors if tensor is not None], folder, DATA, callback=report
        )
        for value, tensor in zip(stored, external, strict=True):
            value.const_value = tensor
        ir.save(model, folder / MODEL)
    except OSError as error:
        raise ArchcError(f"{folder.parent}: writing the model failed: {error}") from error


def _is_external(value: ir.Value) -> bool:
    tensor = value.const_value
    assert tensor is not None
    return isinstance(tensor, ir.LazyTensor) or tensor.nbytes > _INLINE_BYTES
