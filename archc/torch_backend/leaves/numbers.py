"""Numbers of an op as tensors, made where they are used: a buffer would be garbage after a meta build."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def numbers(values: tuple[float, ...], like: Tensor) -> Tensor:
    """The numbers in float32 on the device of ``like``, copied there once."""
    if torch.compiler.is_compiling() or like.is_meta:
        return torch.tensor(values, dtype=torch.float32, device=like.device)
    return _kept(values, like.device)


@lru_cache(maxsize=64)
def _kept(values: tuple[float, ...], device: torch.device) -> Tensor:
    # What is kept is for calls of every kind, and a tensor made in inference mode can't be saved for a backward.
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device)
