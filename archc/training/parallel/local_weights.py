"""Leaves whose weights are DTensors on the ranks of tp and whose forward sees this rank's pieces, as plain tensors.

A leaf's class is replaced by a subclass with a property for each weight, so names and state dicts stay, and FSDP2, which puts
gathered weights in the place of its own, is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from archc.ir.piece import Piece
from archc.planning.rank_graph import WeightUse
from archc.training.parallel.exchanges import enter_pieces, gather_pieces, once


@dataclass(frozen=True, slots=True)
class TensorRanks:
    """The ranks that share a model's heads and channels: ``index`` of ``ways``, and their group's name."""

    index: int
    ways: int
    group: str


Uses = tuple[tuple[str, WeightUse], ...]
"""(attribute, use) of a module's own weights."""

_made: dict[tuple[type[Any], Uses, TensorRanks], type[Any]] = {}


_raw: list[None] = []
"""Has an item while weights are seen as they are held."""


@contextmanager
def raw_weights() -> Generator[None]:
    """Within it all leaves give the DTensors themselves, as those who replace them want."""
    _raw.append(None)
    try:
        yield
    finally:
        _raw.pop()


def see_pieces(module: nn.Module, uses: Mapping[str, WeightUse], ranks: TensorRanks) -> None:
    """From now on a module's forward has this rank's tensors, as their uses say, under its weights' names."""
    plain, key = type(module), tuple(sorted(uses.items(), key=lambda each: each[0]))
    made = _made.get((plain, key, ranks))
    if made is None:
        members: dict[str, Any] = {name: property(_view(name, use, ranks)) for name, use in key}
        members |= {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
        made = _made[plain, key, ranks] = type(plain.__name__, (plain,), members)
    module.__class__ = made


def _view(name: str, use: WeightUse, ranks: TensorRanks) -> Callable[[nn.Module], Tensor | None]:
    def local(module: nn.Module) -> Tensor | None:
        held = module._parameters[name]
        # What FSDP2 has cut once more is seen by FSDP2 only: a forward has what it gathered, over tp alone.
        if _raw or not isinstance(held, DTensor) or held.device_mesh.ndim > 1:
            return held
        own = held.to_local()
        match use.kind:
            case "whole" | "piece":
                return own
            case "shared":
                return enter_pieces(own, group=ranks.group)
            case "once":
                return once(own, is_first=ranks.index == 0)
            case "gathered":
                assert use.dim is not None
                return gather_pieces(own, dim=use.dim, ways=ranks.ways, index=ranks.index, group=ranks.group)

    return local


def placed(weight: nn.Parameter, dim: int | None, mesh: DeviceMesh) -> nn.Parameter:
    """A whole weight, the same on every rank, as a DTensor cut along ``dim`` as ``torch.chunk`` cuts, or held by every rank."""
    whole = weight.detach()
    if dim is not None:
        start, end = Piece(mesh.get_local_rank(), {"": mesh.size()}).bounds(whole.shape[dim], "")
        whole = whole.narrow(dim, start, end - start).clone(memory_format=torch.contiguous_format)
    cut = DTensor.from_local(
        whole,
        mesh,
        [Replicate() if dim is None else Shard(dim)],
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )
    return nn.Parameter(cut, requires_grad=weight.requires_grad)
