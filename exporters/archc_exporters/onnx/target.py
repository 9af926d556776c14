"""What a file is made for: provider, dtype, calling convention, and what the user asked for beyond the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir

from archc.errors import ArchcError
from archc.ir.values import MODEL_DTYPE
from archc.units import dtype_name
from archc_exporters.onnx.weights import DTYPES

Provider = Literal["cuda", "cpu"]
Io = Literal["archc", "genai"]

PROVIDERS: tuple[Provider, ...] = ("cuda", "cpu")
IO: tuple[Io, ...] = ("archc", "genai")
MODEL_DTYPES = ("float16", "float32", "bfloat16")
ONNXRUNTIME = (1, 31)
"""The version that files are made for; newer ones read them too."""

FLOAT8 = "float8_e4m3fn"
WEIGHT_BITS = (4, 8)
BLOCK_SIZES = (16, 32, 64, 128)
"""Of MatMulNBits; CUDA's kernel for one token fails at 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Weights as integers in blocks of inputs, each block with its scale.

    Attributes:
        bits: of a weight, 4 or 8.
        block_size: inputs that share a scale, 16 to 128; halved for a weight whose inputs don't divide by it.
        symmetric: no zero points; a block's numbers lie around zero.
        embedding: also the token table. None: only where the head reads the same table, because a token reads one row of
            it, so that nothing is gained but bytes.
        head: also the matrix that makes logits; every token reads all of it.
        smallest_side: matrices with a side below it stay in float. They are few bytes, and often gates or decays, which
            pass through an exponential.
    """

    bits: int
    block_size: int = 32
    symmetric: bool = True
    embedding: bool | None = None
    head: bool = True
    smallest_side: int = 128

    def __post_init__(self) -> None:
        if self.bits not in WEIGHT_BITS:
            raise ArchcError(f"weights of {self.bits} bits can't be exported; legal: int4, int8")
        if self.block_size not in BLOCK_SIZES:
            legal = ", ".join(str(size) for size in BLOCK_SIZES)
            raise ArchcError(f"blocks of {self.block_size} weights can't be exported; legal: {legal}")


def quantization(name: str | None, **choices: Any) -> Quantization | None:
    """``int4`` or ``int8`` with the fields of ``Quantization``; None for None.

    Raises:
        ArchcError: there is no such type, or choices are made for none.
    """
    if name is None:
        plain = Quantization(bits=8)
        chosen = [key for key, value in choices.items() if value != getattr(plain, key)]
        if chosen:
            raise ArchcError(
                f"quantisation's {', '.join(chosen)} is chosen, but no quantisation: set quant to int4 or int8"
            )
        return None
    if name not in ("int4", "int8"):
        raise ArchcError(f"weights in {name} can't be exported; legal: int4, int8")
    return Quantization(bits=int(name.removeprefix("int")), **choices)


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
        kv_cache_dtype: of keys, values, latents and convolution columns whatever the cache policy says: ``int8``, ``int4``,
            ``float8_e4m3fn``, or ``model`` for ``dtype``; None leaves it to the policy.
        quant: integer weights; None leaves them in ``dtype``.
        kernel_dtype: for which the forms of ops are chosen; None is ``dtype``. A float32 twin keeps the forms of its file.
        onnxruntime: (major, minor) of the oldest version that must run the file.
    """

    provider: Provider = "cuda"
    dtype: str = "float16"
    io: Io = "archc"
    batched_chunks: bool = False
    sliding_window_cache: bool = False
    prune_head: bool = False
    kv_cache_dtype: str | None = None
    quant: Quantization | None = None
    kernel_dtype: str | None = None
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
        if self.provider == "cpu" and self.dtype == "bfloat16":
            raise ArchcError(
                "onnxruntime's CPU has no kernels in bfloat16; choose float32 or float16, or make the file for cuda"
            )
        if self.kv_cache_dtype is not None:
            object.__setattr__(self, "kv_cache_dtype", _kv_cache_dtype(self.kv_cache_dtype, self.dtype))

    @property
    def form_dtype(self) -> str:
        """The dtype that forms of ops are chosen for."""
        return self.kernel_dtype or self.dtype

    @property
    def ir_dtype(self) -> ir.DataType:
        """``dtype`` as onnx-ir's."""
        return DTYPES[self.dtype]


def _kv_cache_dtype(text: str, model_dtype: str) -> str:
    name = dtype_name(text)
    if name in (MODEL_DTYPE, model_dtype):
        return MODEL_DTYPE
    if name in MODEL_DTYPES:
        raise ArchcError(
            f"a cache in {name} beside activations in {model_dtype} can't be exported: a kernel wants one dtype"
        )
    legal = ("int8", "int4", FLOAT8)
    if name not in legal:
        raise ArchcError(f"a cache in {text} can't be exported; legal: {', '.join(legal)}, {model_dtype}")
    return name
