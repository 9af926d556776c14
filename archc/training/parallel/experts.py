"""Expert parallelism: a rank holds some experts whole, and rows travel to the rank of their expert and back; none is dropped.

As in GShard (arXiv 2006.16668), without its capacity: how many rows go where is told first, so loads may be of any kind.
"""

# Shape suffixes: R rows of this rank, Q rows that came here, r ranks, E experts of the model, e of this rank, D width.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from archc.errors import Problem, SpecError
from archc.graph.graph import Graph
from archc.planning.sharding import shard
from archc.torch_backend.leaves.moe import Experts
from archc.training.parallel.classes import subclass
from archc.training.parallel.world import World

Method = TypeVar("Method", bound=Callable[..., Any])


def share(model: nn.Module, graph: Graph, world: World) -> nn.Module:
    """Experts shared out over the ranks of ep, in place: weights become DTensors, cut along the axis ``experts``.

    Before ``fully_shard``. A rank's gradients of its experts are those of all ranks' rows: they are summed over ``expert_dp``
    only, everything else over dp and cp.

    Raises:
        SpecError: the experts can't be shared out so.
    """
    if world.parallel.ep == 1:
        return model
    shard(graph, world.parallel, vocab_multiple=1).check()
    mesh = world.expert_submesh("ep")
    problems: dict[str, None] = {}
    for path, node in graph.walk():
        if not any("experts" in param.axes for param in node.params.values()):
            continue
        leaf = model.get_submodule(path)
        if not isinstance(leaf, Experts) or any(param.axes[0] != "experts" for param in node.params.values()):
            problems[
                f"{node.op.op_name}: its experts can't be shared out (ep): archc knows no way to send them rows"
            ] = None
            continue
        assert leaf.twin is None, "a twin is for judging one process"
        for role in node.params:
            _cut(leaf, role, mesh)
        leaf.__class__ = subclass(type(leaf), _SharedExperts)
        leaf.mesh = mesh  # type: ignore[assignment]
    if problems:
        raise SpecError([Problem(message=message, code="split") for message in problems])
    return model


def _cut(leaf: nn.Module, role: str, mesh: DeviceMesh) -> None:
    """One weight (E, …) becomes this rank's (e, …) of it."""
    whole = leaf.get_parameter(role)
    piece = whole.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
    cut = DTensor.from_local(piece, mesh, [Shard(0)], run_check=False)
    leaf.register_parameter(role, nn.Parameter(cut, requires_grad=whole.requires_grad))


def _never_compiled(method: Method) -> Method:
    plain: Any = torch.compiler.disable(method)
    return plain


class _SharedExperts(Experts):
    """Experts of which this rank holds those that its weights say."""

    mesh: DeviceMesh

    # Numbers of rows are other ones in every call, and a compiler would make code for each.
    @_never_compiled
    def run(self, rows_RD: Tensor, ends_E: Tensor, sorted_R: Tensor) -> Tensor:
        group, ranks = self.mesh.get_group(), self.mesh.size()
        counts_E = ends_E.diff(prepend=ends_E.new_zeros(1))
        # In order of the sender, then of the expert, as the rows will come.
        came_re = all_to_all_single(counts_E, None, None, group).view(ranks, -1)
        sent, received = torch.stack((counts_E.view(ranks, -1).sum(1), came_re.sum(1))).tolist()
        rows_QD = all_to_all_single_autograd(rows_RD, received, sent, group)
        local_e = torch.arange(came_re.shape[1], device=rows_RD.device)
        expert_Q = local_e.repeat(ranks).repeat_interleave(came_re.flatten(), output_size=sum(received))
        order_Q = expert_Q.argsort(stable=True)
        y_QD = super().run(rows_QD[order_Q], came_re.sum(0).cumsum(0), expert_Q[order_Q])
        back_Q = torch.empty_like(order_Q).scatter(0, order_Q, torch.arange(order_Q.shape[0], device=rows_RD.device))
        return all_to_all_single_autograd(y_QD[back_Q], sent, received, group)

    def _project(
        self, rows: Tensor, weight: Tensor | None, bias: Tensor | None, ends_E: Tensor, sorted_R: Tensor
    ) -> Tensor | None:
        return super()._project(rows, _local(weight), _local(bias), ends_E, sorted_R)


def _local(weight: Any) -> Tensor | None:
    return weight.to_local() if isinstance(weight, DTensor) else weight
