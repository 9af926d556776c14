"""torch.optim.Muon for what it does not take: stacks of matrices, and matrices that are cut over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

MOMENTUM_BUFFER = "momentum_buffer"

RMS = 0.2
"""What an element of an update has on average, as AdamW's have: arXiv 2502.16982, ``match_rms_adamw`` in torch."""


class Muon(torch.optim.Optimizer):
    """Momentum, whose Nesterov form is made orthogonal and scaled by 0.2 sqrt(max(rows, columns)) (arXiv 2502.16982).

    For a matrix on one process the same as ``torch.optim.Muon(…, adjust_lr_fn="match_rms_adamw")`` to the last bit, whose
    Newton-Schulz iteration is used. Of a stack (…, rows, columns) each matrix is one. Momentum stays cut as the weight is; where
    a cut runs through matrices, the update is gathered, made orthogonal on every rank that has a part of it, and cut again, so
    ranks move weights as one process does but for what their gradients differ in.
    """

    def __init__(self, params: Iterable[Any], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Move every weight that has a gradient; a cut weight has one on all of its ranks or on none."""
        for group in self.param_groups:
            lr, momentum, weight_decay = group["lr"], group["momentum"], group["weight_decay"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if MOMENTUM_BUFFER not in state:
                    state[MOMENTUM_BUFFER] = torch.zeros_like(param, memory_format=torch.preserve_format)
                grad, buffer, weight = _local(_like(param.grad, param)), _local(state[MOMENTUM_BUFFER]), _local(param)
                buffer.lerp_(grad, 1 - momentum)
                update = _direction(grad.lerp(buffer, momentum), param)
                weight.mul_(1 - lr * weight_decay)
                weight.add_(update, alpha=lr * (RMS * math.sqrt(max(param.shape[-2:]))))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(grad: Tensor, param: Tensor) -> Tensor:
    """A gradient cut as its weight is."""
    if isinstance(grad, DTensor) and isinstance(param, DTensor) and grad.placements != param.placements:
        return grad.redistribute(placements=param.placements)
    return grad


def _direction(update: Tensor, param: Tensor) -> Tensor:
    """This rank's part of where a weight goes, for its part of the momentum: minus the orthogonal update."""
    if not isinstance(param, DTensor) or _has_whole_matrices(param):
        return _moved(update)
    mesh = param.device_mesh
    cut = DTensor.from_local(update, mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride())
    placements = list(param.placements)
    for dim in range(mesh.ndim):
        # FSDP2's dimension of a mesh is the outer one and was cut last.
        placements[dim] = Replicate()
        cut = cut.redistribute(placements=placements)
    whole = DTensor.from_local(_moved(cut.to_local()), mesh, placements, run_check=False)
    return whole.redistribute(placements=param.placements).to_local()


def _has_whole_matrices(param: DTensor) -> bool:
    """Whether a rank's part is of whole matrices: no cut, or cuts along the dimensions of a stack."""
    return all(
        getattr(placement, "dim", 0) < param.dim() - 2 or not hasattr(placement, "dim")
        for placement in param.placements
    )


def _moved(stack: Tensor) -> Tensor:
    """Where torch.optim.Muon moves zeros, for a gradient each: minus its orthogonal matrix, exactly."""
    if not stack.numel():
        return torch.zeros_like(stack)
    moved = torch.zeros_like(stack)
    for zeros, matrix in zip(moved.view(-1, *stack.shape[-2:]), stack.reshape(-1, *stack.shape[-2:]), strict=True):
        # Wide, so that torch's own adjustment is a factor of one.
        is_tall = zeros.shape[0] > zeros.shape[1]
        weight = nn.Parameter(zeros.t() if is_tall else zeros)
        weight.grad = matrix.t() if is_tall else matrix
        torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False).step()
    return moved
