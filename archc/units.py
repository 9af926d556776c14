"""dtypes and bytes: the one place that knows how wide a dtype is and how a byte count is printed."""

from __future__ import annotations

DTYPE_BITS = {
    "float64": 64,
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int64": 64,
    "int32": 32,
    "int8": 8,
    "int4": 4,
    "bool": 8,
}
"""Bits of one element, by torch's dtype name."""

SPEC_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "int4")
"""dtypes that a spec may state."""

SHORT_DTYPES = {
    "f32": "float32",
    "fp32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
}
"""Short forms, for the command line only."""


def dtype_name(text: str) -> str:
    """Torch's name of a dtype given by its name or its short form; the text itself when it is neither."""
    return SHORT_DTYPES.get(text, text)


def tensor_bytes(elements: int, dtype: str) -> int:
    """Bytes of a tensor; sub-byte elements are packed and rounded up to whole bytes."""
    return -(-elements * DTYPE_BITS[dtype] // 8)


def gib(count_bytes: int) -> str:
    """A byte count for people: binary units, three decimals above a KiB."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count_bytes >= size:
            return f"{count_bytes / size:.3f} {unit}"
    return f"{count_bytes} B"


def si(count: int) -> str:
    """A count for people: 48.12 B, 1.03 T."""
    for unit, size in (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return str(count)
