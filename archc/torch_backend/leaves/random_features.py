"""Positive orthogonal random features."""

# Shape suffixes: B batch, S new tokens, N heads, D head_dim, M features.

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from archc.ir.values import Node
from archc.ops import random_features as ops
from archc.torch_backend.context import Context, Function


def query_features(x: Tensor, *, head_dim: int, num_features: int, seed: int, scale: float, exact: bool) -> Tensor:
    """``softmax_i(w_i.y)`` of each head, y = sqrt(scale) x."""
    y_BSND = _scaled(x, head_dim, scale, exact)
    with torch.autocast(x.device.type, enabled=False):
        return _result((y_BSND @ _directions(y_BSND, num_features, seed)).softmax(-1))


def key_features(
    x: Tensor, *, head_dim: int, num_features: int, seed: int, scale: float, shift: float, exact: bool
) -> Tensor:
    """``e^(w_i.y - |y|^2/2 - shift)`` of each head, y = sqrt(scale) x."""
    y_BSND = _scaled(x, head_dim, scale, exact)
    with torch.autocast(x.device.type, enabled=False):
        exponent = y_BSND @ _directions(y_BSND, num_features, seed) - y_BSND.square().sum(-1, keepdim=True) / 2
        return _result((exponent - shift).exp())


def _scaled(x: Tensor, head_dim: int, scale: float, exact: bool) -> Tensor:
    wide = torch.float64 if exact or x.dtype == torch.float64 else torch.float32
    return x.unflatten(-1, (-1, head_dim)).to(wide) * scale**0.5


def _result(features_BSNM: Tensor) -> Tensor:
    return features_BSNM.flatten(-2).float()


def _directions(like: Tensor, count: int, seed: int) -> Tensor:
    """The directions as columns, (D, M), of the dtype and on the device of ``like``."""
    width = like.shape[-1]
    if torch.compiler.is_compiling() or like.is_meta:
        return torch.ops.archc.random_directions(like.detach(), count, width, seed)
    return _kept(count, width, seed, like.dtype, like.device)


@lru_cache(maxsize=16)
def _kept(count: int, width: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # What is kept is for calls of every kind, and a tensor made in inference mode can't be saved for a backward.
    with torch.inference_mode(False):
        rows_MD = torch.tensor(ops.directions(count, width, seed), dtype=torch.float64)
        return rows_MD.t().contiguous().to(device, dtype)


@torch.library.custom_op("archc::random_directions", mutates_args=())
def random_directions(like: Tensor, count: int, width: int, seed: int) -> Tensor:
    """The same as one node of a compiled graph, which would otherwise hold the numbers one by one."""
    return _kept(count, width, seed, like.dtype, like.device).clone()


@random_directions.register_fake
def random_directions_outputs(like: Tensor, count: int, width: int, seed: int) -> Tensor:
    return like.new_empty(width, count)


def random_features(node: Node, context: Context) -> Function:
    op = node.op
    assert isinstance(op, ops.RandomFeatures)
    words = {"head_dim": op.head_dim, "num_features": op.num_features, "seed": op.seed, "scale": op.scale}
    words["exact"] = context.twin is not None
    if op.of == "query":
        return Function(query_features, words)
    return Function(key_features, {**words, "shift": op.shift()})
