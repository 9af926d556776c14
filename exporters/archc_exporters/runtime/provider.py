"""Which execution provider runs a file, and the session on it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Literal

import onnxruntime as ort

from archc.errors import ArchcError

Provider = Literal["cpu", "cuda"]
NAMES: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def cuda_devices() -> int:
    """How many CUDA devices the driver shows; 0 where there is no driver or onnxruntime was built without CUDA."""
    if NAMES["cuda"] not in ort.get_available_providers():
        return 0
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def choose(made_for: Provider, asked: str | None) -> Provider:
    """What was asked for; else CUDA where the file was made for it and a device is there, else the CPU.

    Raises:
        ArchcError: the provider that was asked for is unknown or can't run here.
    """
    if asked is None:
        return "cuda" if made_for == "cuda" and cuda_devices() else "cpu"
    if asked == "cpu":
        return "cpu"
    if asked != "cuda":
        raise ArchcError(f"provider {asked!r} is unknown; known: {', '.join(NAMES)}")
    if NAMES["cuda"] not in ort.get_available_providers():
        offered = ", ".join(ort.get_available_providers())
        raise ArchcError(f"this onnxruntime has no CUDA ({offered}); install onnxruntime-gpu, or take --provider cpu")
    if not cuda_devices():
        raise ArchcError("no CUDA device is found; take --provider cpu")
    return "cuda"


def open_session(model: Path | bytes, provider: Provider, *, threads: int = 0) -> ort.InferenceSession:
    """The model on a provider; 0 threads lets onnxruntime choose.

    Raises:
        ArchcError: onnxruntime refuses the model, or falls back to another provider.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    order: Sequence[str] = [NAMES[provider]] if provider == "cpu" else [NAMES[provider], NAMES["cpu"]]
    what = model if isinstance(model, Path) else "the model"
    if provider == "cuda":
        # CUDA's libraries from Python packages, where the system has none; what is missing is printed, and not wanted there.
        with redirect_stdout(sys.stderr):
            ort.preload_dlls()
    try:
        session = ort.InferenceSession(model, options, providers=order)
    except Exception as error:  # onnxruntime raises a family of its own, based on Exception itself.
        raise ArchcError(f"{what} can't be loaded by onnxruntime {ort.__version__}: {first_line(error)}") from error
    if NAMES[provider] not in session.get_providers():
        raise ArchcError(
            f"onnxruntime {ort.__version__} can't use {NAMES[provider]}: CUDA 13 and its libraries are needed "
            "(pip install 'onnxruntime-gpu[cuda,cudnn]'); or take --provider cpu"
        )
    return session


def first_line(error: Exception) -> str:
    """What onnxruntime says, without its stack."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
