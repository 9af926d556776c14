"""Weights of a cut model: each drawn whole, as one process draws it, and cut; one whole weight exists at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from archc.graph.graph import Graph
from archc.torch_backend.build import drawn


def held_weights(model: nn.Module) -> dict[str, Tensor]:
    """Name -> parameter or persistent buffer of this rank, by the graph's names, tied ones under each name."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


def initialise(model: nn.Module, graph: Graph, seed: int) -> None:
    """Weights as ``archc.build(spec, device="cpu", seed=seed)`` draws them, whatever the ranks and the device."""
    held = held_weights(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in graph.params().items():
            dtype = held[name].dtype if name in held else torch.float32
            whole = drawn(param, generator, dtype)
            if name in held:
                put_piece(held[name], whole)


def fill(model: nn.Module, graph: Graph, whole: Iterator[tuple[str, Tensor]]) -> None:
    """Pieces of whole weights that come one at a time."""
    held = held_weights(model)
    with torch.no_grad():
        for name, tensor in whole:
            if name in held:
                put_piece(held[name], tensor)


def put_piece(held: Tensor, whole: Tensor) -> None:
    """This rank's part of a whole weight, into the tensor that it holds."""
    if not isinstance(held, DTensor):
        held.copy_(whole)
        return
    held.to_local().copy_(piece_of(whole, held))


def piece_of(whole: Tensor, held: DTensor) -> Tensor:
    """What a rank holds of a whole weight: cut dimension by dimension as the tensor says, the innermost of the mesh first.

    FSDP2 cuts what tensor parallelism has left, though its dimension of the mesh is the outer one.
    """
    mesh, found = held.device_mesh, whole
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for dim in reversed(range(mesh.ndim)):
        # Both kinds of cuts that FSDP2 makes have it, and copies have not.
        along: int | None = getattr(held.placements[dim], "dim", None)
        if along is not None:
            pieces = found.chunk(mesh.size(dim), along)
            found = pieces[coordinate[dim]] if coordinate[dim] < len(pieces) else found.narrow(along, 0, 0)
    return found
