"""What a serving step needs beside weights and cache: activations of the tokens that are read at once, and logits.

Values of a layer are counted while they are alive: from the op that makes them to the last that reads them, each as a tensor of
its own, views too. Attention is fused, so scores are no tensor. Routed experts keep a row a token and expert inside: gate, up and
down side by side. Kernels' own scratch and communication buffers are not in; ``overhead`` stands for those.

A prompt may be read in pieces, so a step reads ``prefill_tokens`` of all sequences together, or a token of each where those are
more. A text whose tokens see later ones is read whole: an encoder's in turn, and where nothing is kept between calls, the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archc.graph.graph import Graph, resolve_dtype
from archc.ir.size import SEQ, Dim, evaluate, product
from archc.ir.values import Body, Call, Node, Value
from archc.planning.parallel import Parallel
from archc.planning.sharding import units_of
from archc.units import tensor_bytes

LOGITS_DTYPE = "float32"
"""Logits are sampled from in this dtype, beside those that the head gives in the model's."""


@dataclass(slots=True, eq=False, repr=False)
class Workspace:
    """Bytes on one rank. ``tokens`` are read at once, ``rows`` of logits are made at once."""

    activation_bytes: int
    logits_bytes: int
    tokens: int
    rows: int

    @property
    def bytes(self) -> int:
        """Both: logits are made when the last layer's values are still there."""
        return self.activation_bytes + self.logits_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "activation_bytes": self.activation_bytes,
            "logits_bytes": self.logits_bytes,
            "tokens_at_once": self.tokens,
            "rows_of_logits": self.rows,
        }


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens that are read at once: sequences of ``length_tokens``, as many as there are, and what is left as one more."""

    tokens: int
    length_tokens: int

    def elements(self, size: Dim) -> int:
        """Elements of a value. What has no dimension for the batch is there once."""
        whole, rest = divmod(self.tokens, self.length_tokens)
        found = evaluate(size, _env(whole, self.length_tokens))
        if rest:
            found += evaluate(size, _env(1, rest)) - evaluate(size, _env(0, rest))
        return found


def _env(batch: int, tokens: int) -> dict[str, int]:
    names = ("seq", "source", "memory", "capacity")
    return {"batch": batch, "past": 0, **dict.fromkeys(names, tokens)}


def read_at_once(graph: Graph, prefill_tokens: int, batch: int, tokens: int) -> Reading:
    """What a step reads of the stack that the head reads, never less for more sequences or longer ones."""
    together = batch * tokens
    if graph.mask != "bidirectional":
        together = min(max(prefill_tokens, batch), together)
    return Reading(together, min(tokens, together))


def source_read_at_once(prefill_tokens: int, batch: int, tokens: int) -> Reading:
    """What is read of the texts that an encoder is given, each of them whole."""
    return Reading(min(max(prefill_tokens, tokens), batch * tokens), tokens)


class Activations:
    """The largest set of values that live at once in a body, in the model's ``dtype``, while so much is read."""

    def __init__(self, parallel: Parallel, dtype: str, reading: Reading, source: Reading) -> None:
        self.parallel, self.dtype, self.reading, self.source = parallel, dtype, reading, source
        self._units: Mapping[str, int] = {}
        self._known: dict[tuple[Body, tuple[bool, ...]], int] = {}

    def peak_bytes(self, root: Body, calls: Collection[Call]) -> int:
        """The most while one of the calls of the root runs, with what the root holds meanwhile."""
        last = {value: number for number, item in enumerate(root.items) for value in item.inputs}
        alive = dict.fromkeys(value for value in root.inputs if value in last)
        peak = 0
        for number, item in enumerate(root.items):
            if isinstance(item, Call) and item in calls:
                beside = sum(self._bytes(value) for value in alive if value not in item.inputs)
                peak = max(peak, beside + self._layer(item, [last[value] > number for value in item.inputs]))
            alive |= dict.fromkeys(item.outputs)
            alive = dict.fromkeys(value for value in alive if last.get(value, -1) > number)
        return peak

    def _layer(self, call: Call, is_kept: Sequence[bool]) -> int:
        key = (call.body, tuple(is_kept))
        if key not in self._known:
            self._units = units_of(list(_nodes(call.body)))
            kept = [value for value, again in zip(call.body.inputs, is_kept, strict=True) if again]
            self._known[key] = self._peak(call.body, kept)
        return self._known[key]

    def _peak(self, body: Body, kept: Collection[Value]) -> int:
        """The most that is alive at once; ``kept`` inputs are read again by the caller."""
        last = {value: number for number, item in enumerate(body.items) for value in item.inputs}
        last |= dict.fromkeys((*body.outputs, *kept), len(body.items))
        alive = {value: self._bytes(value) for value in body.inputs}
        peak = sum(alive.values())
        for number, item in enumerate(body.items):
            before = sum(alive.values())
            made = {value: self._bytes(value) for value in item.outputs}
            if isinstance(item, Call):
                within = zip(item.inputs, item.body.inputs, strict=True)
                inner = self._peak(item.body, [own for value, own in within if last[value] > number])
                inner -= sum(self._bytes(value) for value in item.body.inputs)
                peak = max(peak, before + max(inner, sum(made.values())))
            else:
                peak = max(peak, before + sum(made.values()) + self._inside(item))
            alive |= made
            alive = {value: size for value, size in alive.items() if last.get(value, -1) > number}
        return peak

    def _bytes(self, value: Value) -> int:
        elements = self._elements(value)
        if value.axis is not None:
            ways = self.parallel.tp
            if value.axis == "kv_heads":
                ways = min(ways, self._units.get("kv_heads", ways))
            elements = elements // value.width * -(-value.width // ways)
        return tensor_bytes(elements, resolve_dtype(value.dtype, self.dtype))

    def _elements(self, value: Value) -> int:
        size = product(value.shape)
        of_source = any(name in str(size) for name in ("source", "memory"))
        return (self.source if of_source else self.reading).elements(size)

    def _inside(self, node: Node) -> int:
        """Rows of routed experts: as wide as what each of their products gives, a row a token and expert."""
        widths = [
            param.shape[1] if param.axes[1] is None or self.parallel.ep > 1 else -(-param.shape[1] // self.parallel.tp)
            for param in node.params.values()
            if len(param.shape) == 3 and param.axes[0] == "experts"
        ]
        chosen = [value for value in node.inputs if value.dtype == "int64"]
        if not widths or not chosen:
            return 0
        return tensor_bytes(self._elements(chosen[0]) * sum(widths), self.dtype)


def _nodes(body: Body) -> list[Node]:
    return [node for item in body.items for node in (_nodes(item.body) if isinstance(item, Call) else [item])]


def logits_rows(graph: Graph, batch: int, reading: Reading) -> int:
    """Rows of logits of a step: one a sequence, or one a token where the model says something of each token of a text."""
    logits = graph.outputs.get("logits")
    if logits is None:
        return 0
    return reading.tokens if graph.mask == "bidirectional" and SEQ in logits.shape else batch


def logits_bytes(graph: Graph, dtype: str, rows: int) -> int:
    """Bytes of rows of logits, whole on each last rank: in the model's dtype, and in float32 where they are sampled from."""
    logits = graph.outputs.get("logits")
    if logits is None:
        return 0
    sampled = tensor_bytes(rows * logits.width, LOGITS_DTYPE) if graph.mask != "bidirectional" else 0
    return tensor_bytes(rows * logits.width, dtype) + sampled
