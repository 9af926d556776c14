"""How the cost of each mixer and feed-forward grows with the length: the whole of ``archc complexity``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from archc.errors import ArchcError
from archc.estimation.complexity_costs import Costs, body_costs, node_costs
from archc.estimation.complexity_crossing import crossing
from archc.estimation.complexity_full import full_attention, is_full_attention
from archc.estimation.complexity_growth import Growth, cache_growth, exponent, flops_growth
from archc.estimation.placed import place
from archc.expansion import Source, as_graph
from archc.graph.graph import LAYER, Graph
from archc.ir.size import evaluate
from archc.ir.values import Body

LENGTHS_TOKENS = (4 << 10, 128 << 10, 1 << 20)
"""Where costs are given unless somebody asks for other lengths."""

COMPARED = ("prefill_flops", "decode_flops", "cache_bytes")
"""Costs of a mixer that are compared with those of full attention."""

COMPLEXITY_CONVENTIONS: dict[str, str] = {
    "length": "n tokens of one sequence; prefill: n new tokens from nothing, decode: the n-th token over n - 1 cached ones; "
    "an encoder is given n tokens in a prefill and none in a decode step",
    "growth": (
        "O(n^b): b is measured on the closed form between two lengths beyond every window; w, c, k and g are windows, "
        "chunks, chosen or projected keys and global tokens that multiply it, in tokens; "
        "time: FLOPs over needed pairs, cache: bytes kept after n tokens"
    ),
    "full attention": (
        "the first mixer of the same stack that grows with n^2 and bounds nothing, else a gqa with as many heads of the "
        "same width; a kind is cheaper from n on where it costs less at n and at every greater length, projections included"
    ),
    "bytes": (
        "every op that does counted work reads its inputs and its weights and writes its outputs once, what lies between "
        "them is fused, scores stay on the chip; of routed experts at most those that the tokens choose; the cache: written "
        "once by a prefill, read once by a decode step with the row that it adds, a fixed state read and written"
    ),
}
"""Topic -> what its numbers mean."""


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """One prefill or decode step of one layer at one length."""

    flops: int
    bytes: int

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity; 0 where nothing is moved."""
        return self.flops / self.bytes if self.bytes else 0.0

    def to_json(self) -> dict[str, int | float]:
        return {"flops": self.flops, "bytes": self.bytes, "flops_per_byte": round(self.flops_per_byte, 4)}


@dataclass(slots=True, eq=False, repr=False)
class Overtakes:
    """From which length on a mixer is cheaper than full attention.

    ``tokens`` has ``prefill_flops``, ``decode_flops`` and ``cache_bytes``, where full attention has such a cost; None is never.
    """

    against: str
    tokens: dict[str, int | None]

    def to_json(self) -> dict[str, str | int | None]:
        return {"against": self.against, **{f"{form}_tokens": length for form, length in self.tokens.items()}}


@dataclass(slots=True, eq=False, repr=False)
class KindGrowth:
    """One mixer, cross attention or ffn under its name in the spec, in one layer; ``layers`` of them cost the same.

    ``growth`` has ``prefill`` and ``decode`` (FLOPs) and ``cache`` (bytes). ``section`` is ``encoder`` or ``decoder`` where a
    model has several stacks, else empty. ``family`` and ``name`` of the whole model are ``model`` and ``whole``, and its costs
    are those of all layers, with the embedding and the head.
    """

    section: str
    family: str
    name: str
    layers: int
    costs: Costs
    growth: dict[str, Growth]
    overtakes: Overtakes | None = None
    is_full_attention: bool = False
    at: dict[int, dict[str, Step]] = field(default_factory=dict[int, dict[str, Step]])

    def to_json(self) -> dict[str, Any]:
        costs = self.costs
        return {
            "section": self.section,
            "family": self.family,
            "name": self.name,
            "layers": self.layers,
            "growth": {name: growth.to_json() for name, growth in self.growth.items()},
            "is_full_attention": self.is_full_attention,
            "cheaper_than_full_attention_from": None if self.overtakes is None else self.overtakes.to_json(),
            "formula": {name: str(getattr(costs, name)) for name in costs.__dataclass_fields__},
            "at": [
                {"length_tokens": length, **{name: step.to_json() for name, step in steps.items()}}
                for length, steps in self.at.items()
            ],
        }


@dataclass(slots=True, eq=False, repr=False)
class Complexity:
    """The growth of every kind of a model, and of the whole; ``lengths`` in tokens."""

    name: str
    dtype: str
    batch_size: int
    lengths: tuple[int, ...]
    kinds: list[KindGrowth]
    whole: KindGrowth

    def to_json(self) -> dict[str, Any]:
        """Plain data; every number is an integer but exponents and FLOPs a byte."""
        return {
            "name": self.name,
            "options": {"dtype": self.dtype, "batch_size": self.batch_size, "lengths_tokens": list(self.lengths)},
            "kinds": [kind.to_json() for kind in self.kinds],
            "whole": self.whole.to_json(),
            "conventions": COMPLEXITY_CONVENTIONS,
        }


def complexity(
    spec_or_graph: Source,
    *,
    lengths: Sequence[int] = LENGTHS_TOKENS,
    batch_size: int = 1,
) -> Complexity:
    """How FLOPs and cache of every mixer and ffn grow with the length, exactly, without torch.

    Args:
        spec_or_graph: a spec, a file, a shipped name, or a graph.
        lengths: tokens at which FLOPs, bytes and FLOPs a byte are given.
        batch_size: sequences at once, for those.

    Raises:
        ArchcError: the spec has problems, or an option is not positive.
    """
    for name, value in (("batch_size", batch_size), *(("a length", length) for length in lengths)):
        if value < 1:
            raise ArchcError(f"{name} should be at least 1 (found {value})")
    graph = as_graph(spec_or_graph)
    kinds: list[KindGrowth] = []
    bodies: list[Body] = []
    for section, family, body, layers in _placed(graph):
        costs = body_costs(body, graph.dtype, decodes=graph.mask != "bidirectional")
        known = next((kind for kind in kinds if _is_same(kind, section, family, body, costs)), None)
        if known is not None:
            known.layers += layers
            continue
        growth = {
            "prefill": flops_growth(body, costs.prefill_flops, "prefill"),
            "decode": flops_growth(body, costs.decode_flops, "decode"),
            "cache": cache_growth(body, costs.cache_bytes, graph.dtype),
        }
        kinds.append(KindGrowth(section, family, body.label, layers, costs, growth))
        bodies.append(body)
    _compare(kinds, bodies, graph)
    whole = _whole(graph, kinds)
    for kind in (*kinds, whole):
        for length in dict.fromkeys(lengths):
            kind.at[length] = _at(kind.costs, length, batch_size)
    return Complexity(graph.name, graph.dtype, batch_size, tuple(dict.fromkeys(lengths)), kinds, whole)


def _placed(graph: Graph) -> Iterator[tuple[str, str, Body, int]]:
    """(section, family, body, layers) of every mixer, cross attention and ffn of the layers, in order of first use."""
    counts: dict[tuple[str, str, Body], int] = {}
    for call in graph.root.calls():
        found = LAYER.match(call.name)
        for inner in call.body.calls() if found else ():
            if found and inner.body.part:
                key = (found["stack"] or "", inner.name, inner.body)
                counts[key] = counts.get(key, 0) + 1
    for (section, family, body), count in counts.items():
        yield section, family, body, count


def _is_same(kind: KindGrowth, section: str, family: str, body: Body, costs: Costs) -> bool:
    return (kind.section, kind.family, kind.name, kind.costs) == (section, family, body.label, costs)


def _compare(kinds: list[KindGrowth], bodies: list[Body], graph: Graph) -> None:
    """Every mixer beside the full attention of its stack, or one that is made for it."""
    full: dict[str, KindGrowth] = {}
    mixers = [(kind, body) for kind, body in zip(kinds, bodies, strict=True) if kind.family == "mixer"]
    for kind, body in mixers:
        kind.is_full_attention = is_full_attention(body, kind.growth["prefill"])
        if kind.is_full_attention:
            full.setdefault(kind.section, kind)
    for kind, body in mixers:
        known = full.get(kind.section)
        if kind is known or kind.growth["prefill"].exponent == 0:
            # The tokens of a picture are as many as its patches, whatever n.
            continue
        mask = "bidirectional" if kind.section == "encoder" else graph.mask
        made = (known.name, known.costs) if known is not None else full_attention(body, graph.dtype, mask=mask)
        if made is not None:
            pairs = ((form, getattr(kind.costs, form), getattr(made[1], form)) for form in COMPARED)
            tokens = {form: crossing(mine, theirs) for form, mine, theirs in pairs if theirs != 0}
            kind.overtakes = Overtakes(made[0], tokens)


def _whole(graph: Graph, kinds: Sequence[KindGrowth]) -> KindGrowth:
    placement = place(graph)
    total = Costs()
    for placed in placement.nodes:
        decodes = graph.mask != "bidirectional"
        costs = node_costs(placed.node, graph.dtype, decodes=decodes, last_only=placed.is_readout)
        total = total.plus(costs, placed.count)
    forms = {"prefill": total.prefill_flops, "decode": total.decode_flops, "cache": total.cache_bytes}
    growths: dict[str, Growth] = {}
    for name, form in forms.items():
        order = exponent(form)
        leading = [growth.bounds for kind in kinds if (growth := kind.growth[name]).exponent == order is not None]
        letters = dict.fromkeys(letter for bounds in leading for letter in bounds)
        growths[name] = Growth(order, {one: max(found.get(one, 0) for found in leading) for one in letters})
    return KindGrowth("", "model", "whole", sum(placement.layers.values()), total, growths)


def _at(costs: Costs, length: int, batch_size: int) -> dict[str, Step]:
    env = {"n": length, "batch": batch_size}
    return {
        "prefill": Step(evaluate(costs.prefill_flops, env), evaluate(costs.prefill_bytes, env)),
        "decode": Step(evaluate(costs.decode_flops, env), evaluate(costs.decode_bytes, env)),
    }
