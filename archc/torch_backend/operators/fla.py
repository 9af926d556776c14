# B batch, S tokens, H heads, K key channels, V value channels
"""The gated delta rule through flash-linear-attention's Triton kernels, where that package is installed.

Untested: no GPU was at hand. Written against `fla.ops.kda.chunk_kda(q, k, v, g, beta, scale, initial_state,
output_final_state)` of flash-linear-attention 0.4; imported by `gated_delta` for CUDA tensors only.
"""

import importlib.util
from functools import cache

import torch
from torch import Tensor


@cache
def _installed() -> bool:
    return importlib.util.find_spec("fla") is not None and importlib.util.find_spec("fla.ops.kda") is not None


def usable(v: Tensor, log_decay: Tensor) -> bool:
    """Whether the kernels cover these inputs; chunk_kda wants a decay per key channel and has no float64."""
    return v.dtype != torch.float64 and log_decay.shape[-1] > 1 and _installed()


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """q, k, log_decay: (B, S, H, K); v: (B, S, H, V); beta: (B, S, H); state: (B, H, K, V), in and out."""
    from fla.ops.kda import chunk_kda  # pyright: ignore[reportMissingImports]

    out, final_state = chunk_kda(
        q=q.to(v.dtype),
        k=k.to(v.dtype),
        v=v,
        g=log_decay.float(),
        beta=beta.float(),
        scale=scale,
        initial_state=state.float().contiguous(),
        output_final_state=True,
    )
    return out.to(v.dtype), final_state
