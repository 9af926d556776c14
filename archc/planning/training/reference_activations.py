"""Megatron-LM's formula of activation memory, as a reference to compare with: arXiv 2205.05198, sections 4 and 5.

Of one layer, in bytes, 16-bit, for tokens s, micro-batch b, width h, heads a, tensor parallelism t::

    none       s b h (34 + 5 a s / h)              in parts over t: s b h (10 + 24 / t + 5 a s / (h t))
    selective  s b h  34                           the attention matrix and what is made of it again in backward
    full       s b h   2

With sequence parallelism all of it is cut by t. It is made for GPT: two norms, a feed-forward of 4 h, dropout on attention, its
output and the feed-forward's, and an attention that writes its matrix. What it has that a graph here has not: dropout masks
(2 s b h and a s^2 b bytes) and the attention matrix (4 a s^2 b), which fused attention never writes. A graph counts what the
formula leaves out: statistics of norms (16 s b a layer) and log-sums of attention (4 a s b).
"""

from __future__ import annotations

from collections import Counter

from archc.graph.graph import LAYER, Graph
from archc.ir.tape import Recompute
from archc.ir.values import Body, Node
from archc.ops.attention import Attention, LatentAttention
from archc.planning.parallel import Parallel
from archc.planning.sharding import Stage
from archc.planning.training.activations import StageActivations


def megatron_layer_bytes(
    *,
    tokens: int,
    batch_size: int,
    hidden_size: int,
    num_heads: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
) -> int:
    """Bytes of one layer on one rank, by the formula of the paper; rounded up to a byte."""
    token = tokens * batch_size * hidden_size
    matrix = 5 * num_heads * tokens * tokens * batch_size
    if recompute == "full":
        return -(-2 * token // (tp if sequence_parallel else 1))
    whole, cut = 10 * token, 24 * token + (matrix if recompute == "none" else 0)
    return -(-(whole + cut) // tp) if sequence_parallel else whole - (-cut // tp)


class FormulaByStages:
    """The same form as ``KeptByStages``, by the formula: what stands outside of layers is left out."""

    left_out: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        graph: Graph,
        stages: list[Stage],
        parallel: Parallel,
        *,
        seq_len: int,
        recompute: Recompute,
        sequence_parallel: bool,
    ) -> None:
        self.stages, self.parallel = stages, parallel
        self.tokens, self.sequence_parallel = -(-seq_len // parallel.cp), sequence_parallel
        self.recompute: Recompute = recompute
        self.bodies = {call.name: call.body for call in graph.root.calls() if LAYER.match(call.name)}

    def at(self, batch_size: int) -> list[StageActivations]:
        """Each stage's bytes of a micro-batch of so many sequences."""
        found: list[StageActivations] = []
        for stage in self.stages:
            one = StageActivations()
            for body, count in Counter(self.bodies[name] for name in stage.layers).items():
                kept = self._bytes(body, batch_size, self.recompute)
                one.by_layer[body.label] = one.by_layer.get(body.label, 0) + kept * count
                one.working = max(one.working, self._bytes(body, batch_size, "none") - kept)
            found.append(one)
        return found

    def _bytes(self, body: Body, batch_size: int, recompute: Recompute) -> int:
        return megatron_layer_bytes(
            tokens=self.tokens,
            batch_size=batch_size,
            hidden_size=body.inputs[0].width,
            num_heads=_heads(body),
            tp=self.parallel.tp,
            sequence_parallel=self.sequence_parallel,
            recompute=recompute,
        )


def formula_problems(graph: Graph) -> list[str]:
    """Layer kinds that the formula is not made for."""
    labels = {call.body.label: call.body for call in graph.root.calls() if LAYER.match(call.name)}
    return [
        f"activations: the formula is for softmax attention over all heads, and {label} has none"
        for label, body in labels.items()
        if not _heads(body)
    ]


def _heads(body: Body) -> int:
    """Heads of a layer's softmax attention, 0 where it has none."""
    for item in body.items:
        if not isinstance(item, Node):
            inner = _heads(item.body)
            if inner:
                return inner
        elif isinstance(item.op, Attention | LatentAttention):
            return item.op.num_heads
    return 0
