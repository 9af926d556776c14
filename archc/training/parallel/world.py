"""The ranks of a run: which place each has along dp, tp, pp, cp and ep, and sums over them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from archc.errors import ArchcError
from archc.planning.parallel import Parallel

DIMS = ("pp", "dp", "cp", "tp")
EXPERT_DIMS = ("pp", "expert_dp", "ep", "tp")
PATIENCE = timedelta(hours=48)
TIMEOUT_S = 600
"""After so long without an answer a rank is taken to be lost; ARCHC_TIMEOUT_S states another time."""


@dataclass(eq=False)
class World:
    """One rank among ``size``. ``mesh`` has the dimensions ``DIMS``, outermost first, and is None without a
    group, where there is one rank.

    ``expert_mesh`` is the same ranks with dp x cp parted into ``expert_dp`` x ``ep``: ranks of ``ep`` share experts, those of
    ``expert_dp`` hold the same ones. ``host`` is a group over the CPU that waits for hours: for what one rank does alone.
    """

    parallel: Parallel
    device: torch.device
    rank: int = 0
    size: int = 1
    mesh: DeviceMesh | None = None
    expert_mesh: DeviceMesh | None = None
    owns_group: bool = False
    host: dist.ProcessGroup | None = None
    _flat: DeviceMesh | None = field(default=None, repr=False)

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for all."""
        return self.rank == 0

    def submesh(self, name: str) -> DeviceMesh:
        """The ranks that differ in one dimension only; ``dp_cp`` is dp and cp taken together, over which FSDP2 cuts."""
        assert self.mesh is not None, "one rank without a group has no mesh"
        if name == "dp_cp":
            if self._flat is None:
                self._flat = self.mesh["dp", "cp"]._flatten("dp_cp")
            return self._flat
        return self.mesh[name]

    def expert_submesh(self, name: str) -> DeviceMesh:
        """Likewise of ``expert_mesh``: ``ep`` or ``expert_dp``."""
        assert self.expert_mesh is not None, "one rank without a group has no mesh"
        return self.expert_mesh[name]

    def ways(self, name: str) -> int:
        """How many ranks a dimension has."""
        sizes = {**self.parallel.to_json(), "dp_cp": self.parallel.dp * self.parallel.cp}
        sizes["expert_dp"] = sizes["dp_cp"] // self.parallel.ep
        return sizes[name]

    def index(self, name: str) -> int:
        """This rank's place along a dimension."""
        if self.mesh is None:
            return 0
        mesh = self.expert_submesh(name) if name in ("ep", "expert_dp") else self.submesh(name)
        return mesh.get_local_rank()

    def group(self, name: str) -> dist.ProcessGroup:
        """The process group of a dimension."""
        mesh = self.expert_submesh(name) if name in ("ep", "expert_dp") else self.submesh(name)
        return mesh.get_group()

    def all_sum(self, tensor: Tensor, *names: str) -> Tensor:
        """The sum over some dimensions, the same on all of their ranks; without names over dp, cp and pp, as for losses."""
        found = tensor.detach().clone()
        for name in names or ("dp_cp", "pp"):
            if self.mesh is not None and self.ways(name) > 1:
                dist.all_reduce(found, group=self.group(name))
        return found

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.mesh is not None and self.size > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the group, if this run made it."""
        if dist.is_initialized() and self.owns_group:
            dist.destroy_process_group()


def is_launched() -> bool:
    """Whether torchrun, or something that speaks as it does, has started this process as a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def open_world(parallel: Parallel, device: str | None = None, *, needs_mesh: bool = False) -> World:
    """This process's place. Under torchrun its group is joined; a group that is there is used; else there is one rank.

    ``needs_mesh``: a mesh of one rank is wanted too, as FSDP2's policies take it.

    Raises:
        ArchcError: there are not as many ranks as ``parallel`` takes, or no such device.
    """
    size = int(os.environ["WORLD_SIZE"]) if is_launched() else dist.get_world_size() if dist.is_initialized() else 1
    if parallel.ranks != size:
        raise ArchcError(_wrong_size(parallel, size))
    where = _device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if size == 1 and not needs_mesh and not dist.is_initialized():
        return World(parallel, where)
    owns_group = not dist.is_initialized()
    if owns_group:
        options: dict[str, Any] = {"timeout": timedelta(seconds=float(os.environ.get("ARCHC_TIMEOUT_S", TIMEOUT_S)))}
        if not is_launched():
            store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]: it is documented there
            options |= {"store": store, "rank": 0, "world_size": 1}
        # gloo beside nccl: checkpoints and sums of numbers go over the host.
        dist.init_process_group("cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo", **options)
    shape = tuple(getattr(parallel, name) for name in DIMS)
    mesh = init_device_mesh(where.type, shape, mesh_dim_names=DIMS)
    expert_shape = (parallel.pp, parallel.dp * parallel.cp // parallel.ep, parallel.ep, parallel.tp)
    expert_mesh = init_device_mesh(where.type, expert_shape, mesh_dim_names=EXPERT_DIMS)
    host: Any = dist.new_group(backend="gloo", timeout=PATIENCE) if size > 1 else None
    return World(parallel, where, dist.get_rank(), size, mesh, expert_mesh, owns_group, host)


def _wrong_size(parallel: Parallel, size: int) -> str:
    ranks = parallel.ranks
    wanted = f"{parallel} {'takes' if ranks > 1 else 'is'} {ranks} rank{'s' if ranks > 1 else ''}"
    if is_launched():
        return f"torchrun has started {size} processes, and {wanted}"
    return f"{wanted}, and this is {size} process: start it as torchrun --nproc-per-node {ranks} -m archc train …"


def _device(asked: str | None) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise ArchcError("torch finds no CUDA device here; choose --device cpu")
    if asked != "cpu" and torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")
