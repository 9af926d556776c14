"""Which tokens of a sequence each rank of cp has, and how what was made of them comes together.

A sequence is cut into 2 x cp equal pieces; rank i has pieces i and 2 cp - 1 - i, so that under a causal mask all have the same
work (Llama 3, arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.attention.bias import CausalBias, causal_lower_right

from archc.torch_backend.step import Step


@dataclass(eq=False)
class CutStep(Step):
    """A training pass in which a rank has some tokens of each sequence, ``positions`` (1, its tokens); never over a cache."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """This rank's two pieces among those of the ranks of a mesh of one dimension."""

    mesh: DeviceMesh

    @property
    def count(self) -> int:
        """Pieces of a sequence."""
        return 2 * self.mesh.size()

    @property
    def mine(self) -> tuple[int, int]:
        """Numbers of this rank's pieces."""
        index = self.mesh.get_local_rank()
        return index, self.count - 1 - index

    def ends(self, seq: int) -> list[tuple[int, int]]:
        """(tokens of a piece, tokens up to its end) of this rank's pieces of ``seq`` tokens."""
        size = seq // self.count
        return [(size, (number + 1) * size) for number in self.mine]

    def take(self, x: Tensor, dim: int) -> Tensor:
        """This rank's tokens of all of them, which lie along ``dim``."""
        pieces = x.chunk(self.count, dim)
        return torch.cat([pieces[number] for number in self.mine], dim)

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """All tokens in their order, of what each rank made of its own; gradients go back to whom they belong to, summed."""
        local = x.movedim(dim, 0)
        halves = local.unflatten(0, (1, 2, -1)).contiguous()
        # Over DTensor, which gathers, scatters its gradient, and is known to torch.compile.
        placed = DTensor.from_local(halves, self.mesh, [Shard(0)], run_check=False)
        whole = placed.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return torch.cat((whole[:, 0], whole[:, 1].flip(0))).flatten(0, 1).movedim(0, dim)


_masks: dict[tuple[int, int], CausalBias] = {}


def lower_right(rows: int, end: int) -> CausalBias:
    """The causal mask of the last ``rows`` of ``end`` tokens, for kernels that need no numbers.

    Made once, and by ``cut_batch``, before a pass: torch.compile takes one and can't make one.
    """
    if (rows, end) not in _masks:
        _masks[rows, end] = causal_lower_right(rows, end)
    return _masks[rows, end]
