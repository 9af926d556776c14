"""Which mixers can share out the tokens of a sequence over ranks (context parallelism), and why others can't.

``context_problems`` are those of any implementation, ``context_limits`` what ``archc train`` doesn't run beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from archc.graph.graph import Graph
from archc.ir.size import SOURCE
from archc.ir.values import Body, Node
from archc.ops.attention import Attention, LatentAttention
from archc.ops.masked_attention import BidirectionalAttention, CrossAttention, RelativeBias
from archc.ops.score import BidirectionalScoreAttention, CrossScoreAttention, ScoreAttention
from archc.ops.shared_attention import SharedAttention

_SCORED = (ScoreAttention, BidirectionalScoreAttention, CrossScoreAttention)
RING = (Attention, LatentAttention, BidirectionalAttention, CrossAttention, SharedAttention, *_SCORED)
"""Softmax attention over the keys of single tokens: ranks pass keys and values around and merge by their log-sums (Ring
Attention, arXiv 2310.01889)."""


GATHERED = (Attention, LatentAttention, SharedAttention, ScoreAttention, RelativeBias)
"""What looks at other tokens and is run by ``archc.training.parallel.context``: on keys and values gathered from all ranks."""


def context_problems(graph: Graph, cp: int) -> list[str]:
    """Why tokens can't be cut into ``cp``, a reason for each mixer and op; none where they can."""
    if cp == 1:
        return []
    found: dict[str, None] = {}
    for body in graph.bodies():
        if body.part == "mixer":
            found |= dict.fromkeys(_reasons(body, cp))
    return list(found)


def context_limits(graph: Graph, cp: int) -> list[str]:
    """Why ``archc train`` doesn't cut tokens into ``cp`` though it could be done; a reason for each."""
    if cp == 1:
        return []
    start, found = f"tokens can't be cut into {cp} (cp)", list[str]()
    if graph.mask != "causal":
        found.append(f"{start}: only the tokens of a causal stack are gathered yet, and this one is {graph.mask}")
    if any(SOURCE in value.shape for value in graph.inputs.values()):
        found.append(f"{start}: the tokens of an encoder are not gathered yet")
    if "positions" not in graph.inputs:
        found.append(f"{start}: what is read here ({', '.join(graph.inputs)}) is not told its positions")
    for node in _outside_mixers(graph.root):
        if (node.states or node.op.takes_step) and type(node.op) not in GATHERED:
            found.append(f"{start}: {node.op.op_name} reads other tokens, which ranks don't gather for it")
    return list(dict.fromkeys(found))


def _reasons(body: Body, cp: int) -> Iterator[str]:
    nodes = list(_nodes(body))
    has_ring = any(type(node.op) in RING for node in nodes)
    for node in nodes:
        name = f"{node.op.op_name} of {body.label}"
        if type(node.op) in RING:
            continue
        if any(state.growth == "fixed" and state.role == "recurrent" for state in node.states.values()):
            yield f"tokens can't be cut into {cp} (cp): {name} carries a recurrent state from token to token"
        elif node.states:
            yield f"tokens can't be cut into {cp} (cp): {name} reads what earlier tokens left behind, and no ring passes it on"
            has_ring = True
    if not has_ring and not any(node.states for node in nodes):
        names = ", ".join(dict.fromkeys(node.op.op_name for node in nodes if node.name))
        yield f"tokens can't be cut into {cp} (cp): {body.label} has no softmax attention over single tokens ({names})"


def _outside_mixers(body: Body) -> Iterator[Node]:
    for item in body.items:
        if isinstance(item, Node):
            yield item
        elif item.body.part != "mixer":
            yield from _outside_mixers(item.body)


def _nodes(body: Body) -> Iterator[Node]:
    for item in body.items:
        if isinstance(item, Node):
            yield item
        else:
            yield from _nodes(item.body)
