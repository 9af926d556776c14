"""The norm of all gradients of all ranks, each counted once, and gradients scaled down to a greatest one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from archc.training.parallel.world import World


@torch.no_grad()
def clip_gradients(
    params: Iterable[Tensor], max_norm: float | None, world: World, *, elsewhere: Collection[Tensor] = ()
) -> Tensor:
    """The L2 norm of all gradients, a float32 scalar, the same on every rank; above ``max_norm`` they are scaled to it, in place.

    Each rank adds up its pieces, a piece that n ranks hold counts 1/n, and one sum over all ranks follows: nothing waits for the
    device. ``elsewhere``: weights that another stage of a pipeline holds and counts (a tied table); they are scaled, not counted.
    With None or 0 nothing is scaled.
    """
    with_grad = [param for param in params if param.grad is not None]
    if world.mesh is None and not elsewhere:
        # One process: torch's own, to the bit.
        total = get_total_norm([_grad(param) for param in with_grad]).to(world.device)
        if max_norm:
            clip_grads_with_norm_(with_grad, max_norm, total)
        return total
    uncounted = {id(param) for param in elsewhere}
    by_copies: dict[int, list[Tensor]] = {}
    pieces: list[Tensor] = []
    for param in with_grad:
        piece = _piece(param)
        pieces.append(piece)
        if id(param) not in uncounted and piece.numel():
            by_copies.setdefault(_copies(param, world), []).append(piece)
    squares = torch.zeros((), dtype=torch.float32, device=world.device)
    for copies, counted in sorted(by_copies.items()):
        squares += get_total_norm(counted).to(squares).square() / copies
    total = world.all_sum(squares, "dp_cp", "tp", "pp").sqrt()
    if max_norm:
        # As torch.nn.utils.clip_grads_with_norm_, which takes no DTensors of several meshes.
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for piece in pieces:
            piece.mul_(factor)
    return total


def _grad(param: Tensor) -> Tensor:
    assert param.grad is not None
    return param.grad


def _piece(param: Tensor) -> Tensor:
    """This rank's part of a gradient; what is a part of a sum is added up first and stays so."""
    grad = _grad(param)
    if not isinstance(grad, DTensor):
        return grad
    assert isinstance(param, DTensor)
    if any(placement.is_partial() for placement in grad.placements):
        grad = grad.redistribute(placements=param.placements)
        param.grad = grad
    return grad.to_local()


def _copies(param: Tensor, world: World) -> int:
    """How many ranks of a stage hold the same piece."""
    parallel = world.parallel
    ranks = parallel.dp * parallel.cp * parallel.tp
    grad = _grad(param)
    if not isinstance(grad, DTensor):
        return ranks
    mesh = grad.device_mesh
    # Both kinds of cuts that torch makes are along a dimension of the tensor, and copies are not.
    parts = prod(mesh.size(i) for i, placement in enumerate(grad.placements) if hasattr(placement, "dim"))
    assert ranks % parts == 0, f"{parts} parts on {ranks} ranks"
    return ranks // parts
