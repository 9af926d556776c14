"""One-dimensional .npy files: written as they grow, read safely and without loading them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np

from archc.errors import ArchcError

Array = np.ndarray[Any, Any]


class GrowingArray:
    """A .npy file that numbers are appended to; numpy leaves room in its header for a length that is known at the end."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._file = path.open("xb")
        self.length = 0
        self._header_bytes = self._write_header()

    def append(self, values: Array) -> None:
        """Raises OSError where the disk is full."""
        self._file.write(values.astype(self._dtype, copy=False).tobytes())
        self.length += len(values)

    def close(self) -> None:
        """The file is whole from here on."""
        try:
            self._file.seek(0)
            header_bytes = self._write_header()
            assert header_bytes == self._header_bytes, "numpy's header grew"
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write_header(self) -> int:
        header: dict[str, Any] = {
            "shape": (self.length,),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(self._dtype),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
        return self._file.tell()


def map_array(path: Path, dtype: str, length: int) -> Array:
    """The numbers of a .npy file, read when they are asked for.

    Raises:
        ArchcError: it can't be read, or holds something else than ``length`` numbers of ``dtype``.
    """
    try:
        # A length of nothing can't be mapped.
        found: Array = np.load(path, mmap_mode="r" if length else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArchcError(
            f"{path} can't be read as an array: {error}; remove its folder, and it is made again"
        ) from error
    if found.shape != (length,) or found.dtype != np.dtype(dtype):
        raise ArchcError(
            f"{path} holds {found.dtype}{list(found.shape)} and not {dtype}[{length}] as manifest.json says; remove its "
            "folder, and it is made again"
        )
    return found
