"""Readable experts: one token, one expert at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def experts_twin(module: Any, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """The sum over each token's experts, in plain matmuls: x (batch, seq, D), indices and weights (batch, seq, k)."""
    flat, chosen, weighed = x.flatten(0, -2), indices.flatten(0, -2), weights.flatten(0, -2).to(x.dtype)
    rows: list[Tensor] = []
    for token in range(flat.shape[0]):
        total = torch.zeros_like(flat[token : token + 1])
        for expert, weight in zip(chosen[token].tolist(), weighed[token], strict=True):
            row = flat[token : token + 1]
            if module.weight_on == "input":
                row = row * weight
            gate = None if module.gate_proj is None else _project(module, "gate_proj", row, expert)
            y = _project(module, "down_proj", module.middle(gate, _project(module, "up_proj", row, expert)), expert)
            total = total + (y if module.weight_on == "input" else y * weight)
        rows.append(total)
    return torch.cat(rows).view(x.shape)


def _project(module: Any, name: str, row: Tensor, expert: int) -> Tensor:
    y = row @ getattr(module, name)[expert].t()
    bias = getattr(module, f"{name}_bias")
    return y if bias is None else y + bias[expert]
