"""What a file is made for: provider, dtype, calling convention, and what the user asked for beyond the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from archc.errors import ArchcError
from archc.units import dtype_name
from archc_exporters.onnx.weights import DTYPES

Provider = Literal["cuda", "cpu"]
Io = Literal["archc", "genai"]

PROVIDERS: tuple[Provider, ...] = ("cuda", "cpu")
IO: tuple[Io, ...] = ("archc", "genai")
MODEL_DTYPES = ("float16", "float32", "bfloat16")
ONNXRUNTIME = (1, 31)
"""The version that files are made for; newer ones read them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Every choice that a lowering or a pass may depend on.

    Attributes:
        provider: whose kernels the forms of ops are chosen for. A file for ``cuda`` runs on the CPU too, except in bfloat16.
        dtype: of weights, activations, keys and values; ``float16``, ``float32`` or ``bfloat16``.
        io: inputs and outputs as archc's own runtime calls them, or as onnxruntime-genai does.
        batched_chunks: several new tokens over a past at batch > 1 must work; GroupQueryAttention refuses them.
        sliding_window_cache: windows by GroupQueryAttention's own rolling cache instead of archc's ring.
        prune_head: logits of each row's last valid token only, (batch, 1, vocab_size).
        onnxruntime: (major, minor) of the oldest version that must run the file.
    """

    provider: Provider = "cuda"
    dtype: str = "float16"
    io: Io = "archc"
    batched_chunks: bool = False
    sliding_window_cache: bool = False
    prune_head: bool = False
    onnxruntime: tuple[int, int] = ONNXRUNTIME

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        for what, value, legal in (
            ("dtype", self.dtype, MODEL_DTYPES),
            ("provider", self.provider, PROVIDERS),
            ("io", self.io, IO),
        ):
            if value not in legal:
                raise ArchcError(f"{what} {value} can't be exported; legal: {', '.join(legal)}")

    @property
    def ir_dtype(self) -> ir.DataType:
        """``dtype`` as onnx-ir's."""
        return DTYPES[self.dtype]
