"""What one rank of tensor parallelism runs, as a graph, and how it uses each weight."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from archc.graph.graph import Graph
from archc.ir.values import Node
from archc.planning.rank_ops import EnterPieces, GatherPieces, SumParts, TakePiece

Use = Literal["whole", "piece", "shared", "once", "gathered"]


@dataclass(frozen=True, slots=True)
class WeightUse:
    """How a rank uses a weight; ``dim`` is the dimension that is cut, None where the rank holds all of it.

    * ``whole``: in work that every rank does, so that each has all of the gradient.
    * ``piece``: a piece, in work on pieces.
    * ``shared``: all of it in work on pieces, where each rank has a part of the gradient.
    * ``once``: a bias behind a sum over ranks, which one of them adds.
    * ``gathered``: a piece that is gathered for work that every rank does.
    """

    kind: Use
    dim: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class RankGraph:
    """What rank ``index`` of ``ways`` runs. ``uses`` has a node's weights by role, where tensor parallelism touches the node.

    ``vocab_rows``: the logits that it makes, from and up to, where they are cut. ``notes`` name the ops that every rank runs
    whole on gathered inputs.
    """

    graph: Graph
    index: int
    ways: int
    vocab_rows: tuple[int, int] | None = None
    uses: dict[Node, dict[str, WeightUse]] = field(default_factory=dict[Node, dict[str, WeightUse]])
    notes: list[str] = field(default_factory=list[str])

    def exchanges(self) -> Counter[str]:
        """How often each op of ``archc.planning.rank_ops`` stands in the model, over all layers."""
        inserted = (EnterPieces, SumParts, GatherPieces, TakePiece)
        return Counter(node.op.op_name for _, node in self.graph.walk() if isinstance(node.op, inserted))
