"""What ``archc train`` can't run though an estimate can count it: both ``archc plan`` and ``archc train`` ask here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from archc.errors import SpecError
from archc.graph.graph import Graph
from archc.planning.flow import rank_graph
from archc.planning.parallel import Parallel
from archc.planning.sharding import Sharding, shard
from archc.planning.training.context_parallel import context_limits, context_problems


def training_limits(graph: Graph, parallel: Parallel, sharding: Sharding | None = None) -> list[str]:
    """Why ``archc train`` can't train a model so, every reason once; empty where it can.

    What can't be at all, however it were run (``Sharding.problems``), is not said again. ``sharding`` is the graph's under
    ``parallel`` where the caller has it, with ``vocab_multiple`` 1.
    """
    if parallel.problems():
        return []
    cut = sharding or shard(graph, parallel, vocab_multiple=1)
    found = (reason for limit in LIMITS for reason in limit(graph, parallel, cut))
    return list(dict.fromkeys(found))


def training_notes(graph: Graph) -> list[str]:
    """What training leaves out of a model."""
    return [] if graph.mtp is None else ["extra prediction layers (mtp) are not trained"]


def _texts(graph: Graph, parallel: Parallel, sharding: Sharding) -> Iterator[str]:
    first = next(iter(graph.inputs), "")
    if first != "input_ids":
        yield f"{graph.name} reads {first}; archc train teaches models of texts"


def _logits(graph: Graph, parallel: Parallel, sharding: Sharding) -> Iterator[str]:
    if "logits" not in graph.outputs:
        yield f"{graph.name} gives {', '.join(graph.outputs)} and no logits, so there is no loss to train it by"


def _few_kv_heads(graph: Graph, parallel: Parallel, sharding: Sharding) -> Iterator[str]:
    for stage in sharding.stages:
        for piece in stage.params:
            if "kv_heads" not in piece.param.axes:
                continue
            _, ways = piece.cuts.get(piece.param.axes.index("kv_heads"), ("tp", 1))
            # One alone stands on all ranks, like anything that isn't cut.
            if 1 < ways < parallel.tp:
                yield f"{ways} kv_heads of {piece.kind} on tp {parallel.tp}: a kv_head held by several ranks is not trained"


def _tensor_and_expert(graph: Graph, parallel: Parallel, sharding: Sharding) -> Iterator[str]:
    if parallel.tp > 1 and parallel.ep > 1:
        yield f"tp {parallel.tp} with ep {parallel.ep}: experts are shared out among ranks of dp and cp, with tp 1"
    elif parallel.ep > 1 and (parallel.dp * parallel.cp) % parallel.ep:
        yield f"ep {parallel.ep} doesn't divide the dp {parallel.dp} x cp {parallel.cp} ranks whose tokens meet in the experts"


def _context(graph: Graph, parallel: Parallel, sharding: Sharding) -> Iterator[str]:
    yield from context_problems(graph, parallel.cp)
    yield from context_limits(graph, parallel.cp)


def _pieces(graph: Graph, parallel: Parallel, sharding: Sharding) -> Iterator[str]:
    """What no op can do with pieces of what it reads, whoever cuts them."""
    if parallel.tp == 1 or sharding.problems or any(_few_kv_heads(graph, parallel, sharding)):
        return
    try:
        rank_graph(graph, parallel, 0)
    except SpecError as error:
        yield from (problem.message for problem in error.problems)


Limit = Callable[[Graph, Parallel, Sharding], Iterator[str]]

LIMITS: tuple[Limit, ...] = (_texts, _logits, _few_kv_heads, _tensor_and_expert, _context, _pieces)
"""Reasons, a function each: a new limit is one more."""
