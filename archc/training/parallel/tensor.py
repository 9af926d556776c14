"""Tensor parallelism (Megatron-LM, arXiv 1909.08053) read off a graph's axes: a model becomes one rank's, exchanges and all.

The rank's graph (``archc.planning.flow``) is lowered like any other: its ops have the rank's own numbers of heads, and what ranks
exchange stands in the generated code. Weights are DTensors under the whole model's names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from archc.graph.graph import Graph, join, walk_scopes
from archc.ir.op import Op
from archc.ir.values import Node
from archc.ops.linear import Embedding, EmbeddingRows, Linear
from archc.planning.flow import rank_graph
from archc.planning.rank_graph import RankGraph, WeightUse
from archc.planning.rank_ops import EnterPieces, GatherPieces, ShareGradient, SumParts, TakePiece
from archc.torch_backend.context import Context, Function
from archc.torch_backend.leaves.linear import embedding
from archc.torch_backend.lower import Lowering
from archc.torch_backend.scopes import ScopeModule
from archc.training.parallel.exchanges import enter_pieces, gather_pieces, share_gradient, sum_parts, take_piece
from archc.training.parallel.local_weights import TensorRanks, placed, see_pieces
from archc.training.parallel.world import World
from archc.training.vocab_loss import VocabLoss


def cut(model: ScopeModule, graph: Graph, world: World) -> RankGraph | None:
    """Make a model this rank's along tp, in place; what the rank runs, or None where nothing is cut.

    Every weight becomes a DTensor on ``world.submesh("tp")`` (experts that ep shares out are left to it), so that ``fully_shard``
    over another dimension of the mesh cuts it once more. A model with weights is cut, too, if all ranks have the same ones.
    Leaves that work as before stay the modules they are.

    Raises:
        SpecError: the model can't be cut so, with every reason.
    """
    if world.parallel.tp == 1:
        return None
    rank = rank_graph(graph, world.parallel, world.index("tp"))
    mesh = world.submesh("tp")
    ranks = TensorRanks(mesh.get_local_rank(), mesh.size(), mesh.get_group().group_name)
    weights = dict(model.named_parameters(remove_duplicate=False))
    context = _RankContext(torch.device("meta"), _dtype_of(model, graph), ranks=ranks)
    local = _RankLowering(rank.graph, context).root()
    cuts = {id(weights[name]): dim for name, dim in _cut_dims(rank)}
    held: dict[int, nn.Parameter] = {}
    for scope, node in walk_scopes(rank.graph.root, ""):
        path = join(scope, node.name)
        if not node.name or not _has_module(model, path):
            continue
        uses = rank.uses.get(node)
        if uses is None:
            _put(local, path, model.get_submodule(path))
            if world.parallel.ep > 1 and any("experts" in param.axes for param in node.params.values()):
                continue
            uses = {role: WeightUse("whole") for role in node.params}
        leaf = local.get_submodule(path)
        by_home: dict[str, dict[str, WeightUse]] = {}
        for role, param in node.params.items():
            attribute = role if _is_tied(node) and role == "weight" else param.name.removeprefix(f"{node.name}.")
            weight = weights.get(join(path, attribute))
            if weight is None:
                _put_buffer(leaf, attribute, model.get_submodule(path))
                continue
            if id(weight) not in held:
                held[id(weight)] = placed(weight, cuts.get(id(weight)), mesh)
            home, _, name = attribute.rpartition(".")
            leaf.get_submodule(home)._parameters[name] = held[id(weight)]
            by_home.setdefault(home, {})[name] = uses[role]
        for home, own in by_home.items():
            see_pieces(leaf.get_submodule(home), own, ranks)
    local.train(model.training)
    model.__class__ = type(local)
    model.__dict__ = {**local.__dict__, "archc_graph": graph}
    return rank


def vocab_loss(rank: RankGraph | None, world: World) -> VocabLoss | None:
    """The loss of logits that tp cuts over the vocabulary; None where every rank has all of them."""
    if rank is None or rank.vocab_rows is None:
        return None
    first, end = rank.vocab_rows
    return VocabLoss(first=first, rows=end - first, group=world.group("tp").group_name)


@dataclass(frozen=True)
class _RankContext(Context):
    ranks: TensorRanks | None = None


class _RankLowering(Lowering):
    """Lowers what ranks exchange, and rows of a table."""

    def lowering(self, op: Op) -> Callable[[Node, Any], nn.Module | Function]:
        made = _EXCHANGES.get(type(op))
        return made or super().lowering(op)


def _exchange(target: Callable[..., Tensor], *fields: str, index: bool = False, group: bool = True) -> Any:
    def lowering(node: Node, context: _RankContext) -> Function:
        assert context.ranks is not None
        words = {name: getattr(node.op, name) for name in fields}
        if index:
            words["index"] = context.ranks.index
        return Function(target, words | ({"group": context.ranks.group} if group else {}))

    return lowering


class TableRows(nn.Embedding):
    """Rows of a table from ``first`` on. Ids of other rows give zeros."""

    first: int

    def forward(self, input: Tensor) -> Tensor:
        rows = self.weight.shape[0]
        if rows == 0:
            return self.weight.sum() + self.weight.new_zeros(*input.shape, self.embedding_dim)
        own = input - self.first
        elsewhere = (own < 0) | (own >= rows)
        found = functional.embedding(own.masked_fill(elsewhere, 0), self.weight)
        return found.masked_fill(elsewhere.unsqueeze(-1), 0.0)


def _table_rows(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, EmbeddingRows)
    module = embedding(node, context)
    module.__class__ = TableRows
    # Beside the dict of what nn.Module saves.
    module.first = node.op.first  # type: ignore[assignment]
    return module


_EXCHANGES: dict[type[Op], Callable[[Node, Any], nn.Module | Function]] = {
    EnterPieces: _exchange(enter_pieces),
    SumParts: _exchange(sum_parts),
    ShareGradient: _exchange(share_gradient, "ways", group=False),
    GatherPieces: _exchange(gather_pieces, "dim", "ways", index=True),
    TakePiece: _exchange(take_piece, "dim", "ways", index=True),
    EmbeddingRows: _table_rows,
}


def _cut_dims(rank: RankGraph) -> list[tuple[str, int]]:
    """(name, dimension) of every weight that is cut."""
    return [
        (join(scope, node.params[role].name), use.dim)
        for scope, node in walk_scopes(rank.graph.root, "")
        for role, use in rank.uses.get(node, {}).items()
        if use.dim is not None and not (_is_tied(node) and role == "weight")
    ]


def _is_tied(node: Node) -> bool:
    return isinstance(node.op, Linear | Embedding) and node.op.tied


def _has_module(model: nn.Module, path: str) -> bool:
    try:
        model.get_submodule(path)
    except AttributeError:
        return False
    return True


def _put(root: nn.Module, path: str, module: nn.Module) -> None:
    home, _, name = path.rpartition(".")
    root.get_submodule(home)._modules[name] = module


def _put_buffer(leaf: nn.Module, attribute: str, old: nn.Module) -> None:
    home, _, name = attribute.rpartition(".")
    leaf.get_submodule(home)._buffers[name] = old.get_submodule(home)._buffers[name]


def _dtype_of(model: nn.Module, graph: Graph) -> torch.dtype:
    """The model's dtype: that of a weight whose dtype the graph leaves open."""
    params = graph.params()
    return next(
        weight.dtype for name, weight in model.named_parameters() if name in params and params[name].dtype == "model"
    )
