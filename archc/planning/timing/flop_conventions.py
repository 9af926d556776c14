"""FLOPs of training by the formulas that papers count with, so that a figure can be compared with theirs.

All take multiply-add as 2 and backward as twice forward. They differ in what N is, in whether causal attention is halved, and in
what lies outside the layers. Where a formula speaks of parameters, a mixture of experts gives those that one token uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from archc.errors import ArchcError
from archc.estimation.flops import BACKWARD
from archc.estimation.parameters import count_parameters
from archc.estimation.placed import Placed, Placement, place
from archc.graph.graph import LAYER, Graph
from archc.ir.op import Pairs
from archc.ir.size import Dim, evaluate, product
from archc.ir.values import Param
from archc.spec.near import nearest

FORWARD_AGAIN = {"none": 0, "selective": 0, "full": 1}
"""Forward passes of the layers that recomputation repeats. ``selective`` keeps every product and repeats what counts nothing."""


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """FLOPs of one sequence of ``tokens`` by one convention: forward of the layers' weights, of attention, of what is outside.

    ``tokens`` are those of a text, of a picture its patches, whatever length was asked for.
    """

    convention: str
    tokens: int
    layers: int
    attention: int
    outside: int

    @property
    def forward(self) -> int:
        return self.layers + self.attention + self.outside

    @property
    def training(self) -> int:
        """Model FLOPs: forward and backward, nothing repeated. Their share of the peak is the MFU."""
        return self.forward * (1 + BACKWARD)

    @property
    def per_token(self) -> float:
        """Training FLOPs a token."""
        return self.training / self.tokens

    def hardware(self, recompute: str) -> int:
        """Training FLOPs with what recomputation repeats. Their share of the peak is the HFU."""
        return self.training + (self.layers + self.attention) * FORWARD_AGAIN[recompute]

    def to_json(self) -> dict[str, Any]:
        return {
            "convention": self.convention,
            "source": SOURCES[self.convention],
            "sequence_tokens": self.tokens,
            "forward_flops": {"layers": self.layers, "attention": self.attention, "outside": self.outside},
            "training_flops": self.training,
            "training_flops_per_token": self.per_token,
        }


SOURCES = {
    "archc": "this graph's own products, needed pairs: causal attention at half, windows and states as they are",
    "6nd": "6 N D, N all parameters that a token uses (Llama 3, arXiv 2407.21783, section 3.2)",
    "kaplan": "6 N + 6 n_layer n_ctx d_attn a token, N the layers' matrices (arXiv 2001.08361, section 2.1)",
    "chinchilla": "products and softmax, with the embedding as a product, attention whole (arXiv 2203.15556, appendix F)",
    "palm": "6 N + 12 L H Q T a token, N all parameters, attention whole (arXiv 2204.02311, appendix B)",
    "megatron": "72 B s l h^2 (1 + s/(6h) + V/(12 l h)), attention whole (arXiv 2104.04473, section 5.1)",
    "mosaic": "3 (2 N s + 4 n_layers d_model s^2) a sequence, attention whole (llm-foundry, benchmarking/README.md)",
}
"""Convention -> its formula and where it stands."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """``quadratic``: forward FLOPs over length^2 of all layers together, masks left out; ``heads`` in all of them."""

    quadratic: int
    heads: int


def training_flops(
    graph: Graph, convention: str = "archc", *, length: int, source_len: int | None = None
) -> ModelFlops:
    """FLOPs that training on one sequence of ``length`` tokens takes, by a convention of ``SOURCES``.

    Raises:
        ArchcError: the convention is unknown, or its formula says nothing about such a model; the message says why.
    """
    if convention not in SOURCES:
        raise ArchcError(unknown_convention(convention))
    facts = _Facts(graph, length, length if source_len is None else source_len)
    tokens = evaluate(product(sequence_rows(graph)), facts.env)
    layers, attention, outside = _FORMULAS[convention](facts, tokens)
    return ModelFlops(convention, tokens, layers, attention, outside)


def sequence_rows(graph: Graph) -> tuple[Dim, ...]:
    """(batch, new rows) of the last layer: tokens of a text, patches of a picture."""
    last = [call for call in graph.root.calls() if LAYER.match(call.name)][-1]
    return last.outputs[0].shape[:-1]


def unknown_convention(name: str) -> str:
    """What is said of a name that is no convention's, with the nearest that is."""
    near = nearest(name, SOURCES)
    hint = f"Did you mean {near}?" if near else f"Known are {', '.join(SOURCES)}"
    return f"FLOP convention {name[:40]!r} is unknown. {hint}"


class _Facts:
    """What the formulas ask of a graph."""

    def __init__(self, graph: Graph, length: int, source_len: int) -> None:
        self.graph = graph
        self.placement: Placement = place(graph)
        self.env = {"batch": 1, "seq": length, "past": 0, "source": source_len, "memory": source_len}

    def active_parameters(self) -> int:
        return count_parameters(self.placement).active

    def flops(self, placed: Placed, pairs: Pairs) -> Dim:
        types = [value.type for value in placed.node.inputs]
        return placed.node.op.flops(types, "many", pairs) * placed.count

    def counted(self, pairs: Pairs) -> Iterator[tuple[Placed, int]]:
        for placed in self.placement.nodes:
            yield placed, evaluate(self.flops(placed, pairs), self.env)

    def attention(self, convention: str) -> _Attention:
        """Attention over the whole text, in every layer.

        Raises:
            ArchcError: some layer has none.
        """
        quadratic, heads, seen = 0, 0, set[str]()
        for placed in self.placement.nodes:
            flops = self.flops(placed, "dense")
            whole = flops if isinstance(flops, int) else flops.substitute({"past": 0, "memory": 0, "source": 0})
            term = 0 if isinstance(whole, int) else whole.terms.get(("batch", "seq", "seq"), 0)
            if term:
                types = [value.type for value in placed.node.inputs]
                quadratic += term
                heads += placed.node.op.units(types).get("heads", 0) * placed.count
                seen.add(placed.layer)
        without = [label for label in self.placement.layers if label not in seen]
        if without or self.graph.reads_encoder:
            what = "it reads an encoder" if self.graph.reads_encoder else f"{', '.join(without)} has no such attention"
            raise ArchcError(f"{convention} counts one attention over the whole text in every layer; {what}")
        return _Attention(quadratic, heads)

    def matrices(self) -> int:
        """Elements, used by one token, of the layers' weights with two or more dimensions."""
        return self._elements(lambda placed, param: bool(placed.layer) and len(param.shape) > 1)

    def token_table(self) -> int:
        """Elements of the table that tokens are looked up in."""
        return self._elements(lambda placed, param: placed.part[0] == "embedding" and "vocab" in param.axes)

    def _elements(self, is_wanted: Callable[[Placed, Param], bool]) -> int:
        total, seen = 0, set[int]()
        for placed in self.placement.nodes:
            for role, param in placed.node.params.items():
                if id(param) not in seen and is_wanted(placed, param):
                    seen.add(id(param))
                    total += placed.node.op.active_elements(role, param) * placed.count
        return total


Parts = tuple[int, int, int]


def _archc(facts: _Facts, length: int) -> Parts:
    inside = outside = 0
    for placed, flops in facts.counted("needed"):
        if placed.layer:
            inside += flops
        else:
            outside += flops
    return inside, 0, outside


def _six_nd(facts: _Facts, length: int) -> Parts:
    return 2 * facts.active_parameters() * length, 0, 0


def _kaplan(facts: _Facts, length: int) -> Parts:
    return 2 * facts.matrices() * length, facts.attention("kaplan").quadratic * length * length // 2, 0


def _whole_attention(convention: str) -> Callable[[_Facts, int], Parts]:
    """PaLM's and Mosaic's formulas, which are one: all parameters, and attention without a mask."""

    def forward(facts: _Facts, length: int) -> Parts:
        attention = facts.attention(convention).quadratic * length * length
        return 2 * facts.active_parameters() * length, attention, 0

    return forward


def _chinchilla(facts: _Facts, length: int) -> Parts:
    attention = facts.attention("chinchilla")
    products = attention.quadratic * length * length + 3 * attention.heads * length * length
    return 2 * facts.matrices() * length, products, 2 * facts.token_table() * length + _head(facts)


def _megatron(facts: _Facts, length: int) -> Parts:
    layers, attention = sum(facts.placement.layers.values()), facts.attention("megatron")
    hidden = _width(facts.graph)
    if facts.matrices() != 12 * hidden * hidden * layers or attention.quadratic != 4 * hidden * layers:
        raise ArchcError(
            f"megatron counts layers with 12 h^2 weights and h-wide attention (h = {hidden:,}), which these are not"
        )
    return 24 * length * layers * hidden * hidden, 4 * length * length * layers * hidden, _head(facts)


def _head(facts: _Facts) -> int:
    """The product with the vocabulary, for every token."""
    return sum(flops for placed, flops in facts.counted("dense") if placed.part[0] == "head")


def _width(graph: Graph) -> int:
    """Width of what the layers hand on."""
    return next(call for call in graph.root.calls()).outputs[0].width


_FORMULAS: dict[str, Callable[[_Facts, int], Parts]] = {
    "archc": _archc,
    "6nd": _six_nd,
    "kaplan": _kaplan,
    "chinchilla": _chinchilla,
    "palm": _whole_attention("palm"),
    "megatron": _megatron,
    "mosaic": _whole_attention("mosaic"),
}
