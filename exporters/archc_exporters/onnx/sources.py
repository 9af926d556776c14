"""Weights that come from no file: random numbers by seed, or none at all."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx_ir as ir

from archc.errors import ArchcError
from archc.ir.values import DISTINCT, MODEL_DTYPE, Param
from archc_exporters.onnx.arrays import NUMPY_DTYPES, Array

_NORMAL_STD = 0.02
_BLOCK_ELEMENTS = 1 << 24


class RandomWeights:
    """Numbers seeded by parameter name, so that one weight does not depend on which others are drawn."""

    def __init__(self, seed: int, dtype: ir.DataType) -> None:
        self._seed, self._dtype = seed, NUMPY_DTYPES[dtype]

    def read(self, name: str, param: Param) -> Array:
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        if param.init.startswith(DISTINCT):
            noise = rng.random((param.shape[0], int(param.init.removeprefix(DISTINCT))), np.float32)
            return noise.argsort(-1)[:, : param.shape[1]]
        out = np.empty(param.elements, self._dtype if param.dtype == MODEL_DTYPE else np.float32)
        # In blocks, so that a 16-bit tensor of many gigabytes never exists in float32.
        for start in range(0, out.size, _BLOCK_ELEMENTS):
            block = out[start : start + _BLOCK_ELEMENTS]
            block[...] = _draw(rng, param, block.size)
        return out.reshape(param.shape)

    def release(self, name: str) -> None:
        """Nothing is kept."""


def _draw(rng: np.random.Generator, param: Param, count: int) -> Array:
    match param.init:
        case "zeros":
            return np.zeros(count, np.float32)
        case "ones":
            return np.ones(count, np.float32)
        case "conv":
            return rng.uniform(-1, 1, count) * param.shape[-1] ** -0.5
        case "a_log":
            return np.log(rng.uniform(1, 16, count))
        case "dt_bias":
            # softplus(dt_bias) is spread over [1e-3, 0.1] in the logarithm, as in Mamba2.
            steps = np.exp(rng.uniform(np.log(1e-3), np.log(0.1), count))
            return steps + np.log(-np.expm1(-steps))
        case _:
            return rng.standard_normal(count, np.float32) * np.float32(_NORMAL_STD)


class NoWeights:
    """For a file whose data are not written: names, shapes and dtypes are all it needs.

    Raises (when read):
        ArchcError: something wants numbers all the same.
    """

    def read(self, name: str, param: Param) -> Array:
        raise ArchcError(f"{name} is wanted, but the file is made without weights")

    def release(self, name: str) -> None:
        """Nothing is kept."""
