"""Blocks of zeros on the host or on a GPU, and tensors that are views of them. What is bound is a pointer: nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort

from archc_exporters.runtime.provider import Provider

Array = np.ndarray[Any, Any]
_ALIGNED_BYTES = 64
_BFLOAT16 = 16
"""ONNX's number of bfloat16, which onnxruntime takes where numpy has no such dtype of its own."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of a name in ``archc.json``."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


class Block:
    """So many bytes, zero at first, on one device; it lives as long as this object."""

    def __init__(self, count_bytes: int, device: Provider) -> None:
        self.device: Provider = device
        self.count_bytes = count_bytes
        if device == "cpu":
            # A little more, so that the first byte can stand where vector loads want it.
            self._owner: Any = np.zeros(count_bytes + _ALIGNED_BYTES, np.uint8)
            start = -self._owner.ctypes.data % _ALIGNED_BYTES
            self.pointer: int = self._owner.ctypes.data + start
            self.host: Array | None = self._owner[start : start + count_bytes]
        else:
            self._owner = ort.OrtValue.ortvalue_from_numpy(np.zeros(max(1, count_bytes), np.uint8), device, 0)
            self.pointer = self._owner.data_ptr()
            self.host = None


class View:
    """A tensor that is a block, or consecutive bytes of one: a row of a batch is such a part of its cache."""

    def __init__(
        self, session: ort.InferenceSession, block: Block, dtype: str, shape: Sequence[int], offset_bytes: int = 0
    ) -> None:
        self.shape, self.dtype = tuple(shape), numpy_dtype(dtype)
        self.count_bytes = int(np.prod(self.shape)) * self.dtype.itemsize
        assert offset_bytes + self.count_bytes <= block.count_bytes, "a view beyond its block"
        self.pointer = block.pointer + offset_bytes
        self._session, self._block, self._offset = session, block, offset_bytes
        self._bindings: list[ort.IOBinding] = []
        self._bits: ort.OrtValue | None = None
        self.value = self._value(_BFLOAT16 if dtype == "bfloat16" else self.dtype.type)

    def _value(self, element_type: Any) -> ort.OrtValue:
        # A binding makes a value of a pointer; there is no constructor that does, and binding a value is faster later on.
        binding = self._session.io_binding()
        name = self._session.get_outputs()[0].name
        binding.bind_output(name, self._block.device, 0, element_type, self.shape, self.pointer)
        self._bindings.append(binding)
        return binding.get_outputs()[0]

    def numpy(self) -> Array:
        """The numbers: the memory itself on the host, a copy of what lies on a GPU."""
        if self._block.host is not None:
            part = self._block.host[self._offset : self._offset + self.count_bytes]
            return part.view(self.dtype).reshape(self.shape)
        if self._bits is None:
            # bfloat16 is unknown to numpy, and is copied as the bits it is.
            self._bits = self._value({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[self.dtype.itemsize])
        return self._bits.numpy().view(self.dtype)

    def take(self, source: View) -> None:
        """Overwrite this tensor with another of its shape and dtype, on the device where both lie."""
        self.value.update_inplace(source.value)
