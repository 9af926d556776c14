"""What a serving step needs beside weights and cache: activations of the tokens that are read at once, and logits.

Values of a layer are counted while they are alive: from the op that makes them to the last that reads them, each as a tensor of
its own, views too. Attention is fused, so scores are no tensor. Routed experts keep a row a token and expert inside: gate, up and
down side by side. Kernels' own scratch and communication buffers are not in; ``overhead`` stands for those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archc.graph.graph import Graph, resolve_dtype
from archc.ir.size import evaluate, product
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


class Activations:
    """The largest set of values that live at once in a body, for so many tokens of one sequence in the model's ``dtype``."""

    def __init__(self, parallel: Parallel, dtype: str, tokens: int, source_tokens: int) -> None:
        self.parallel, self.dtype = parallel, dtype
        self._env = {
            "batch": 1,
            "past": 0,
            "seq": tokens,
            "source": source_tokens,
            "memory": source_tokens,
            "capacity": tokens,
        }
        self._units: Mapping[str, int] = {}
        self._known: dict[Body, int] = {}

    def peak_bytes(self, calls: Sequence[Call]) -> int:
        """Of several layers that follow each other, the largest."""
        return max((self._layer(call.body) for call in calls), default=0)

    def _layer(self, body: Body) -> int:
        if body not in self._known:
            self._units = units_of(list(_nodes(body)))
            self._known[body] = self._peak(body)
        return self._known[body]

    def _peak(self, body: Body) -> int:
        last = {value: number for number, item in enumerate(body.items) for value in item.inputs}
        last |= dict.fromkeys(body.outputs, len(body.items))
        alive = {value: self._bytes(value) for value in body.inputs}
        peak = sum(alive.values())
        for number, item in enumerate(body.items):
            before = sum(alive.values())
            made = {value: self._bytes(value) for value in item.outputs}
            if isinstance(item, Call):
                inner = self._peak(item.body) - sum(self._bytes(value) for value in item.body.inputs)
                peak = max(peak, before + max(inner, sum(made.values())))
            else:
                peak = max(peak, before + sum(made.values()) + self._inside(item))
            alive |= made
            alive = {value: size for value, size in alive.items() if last.get(value, -1) > number}
        return peak

    def _bytes(self, value: Value) -> int:
        elements = evaluate(product(value.shape), self._env)
        if value.axis is not None:
            ways = self.parallel.tp
            if value.axis == "kv_heads":
                ways = min(ways, self._units.get("kv_heads", ways))
            elements = elements // value.width * -(-value.width // ways)
        return tensor_bytes(elements, resolve_dtype(value.dtype, self.dtype))

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
        return tensor_bytes(evaluate(product(chosen[0].shape), self._env) * sum(widths), self.dtype)


def _nodes(body: Body) -> list[Node]:
    return [node for item in body.items for node in (_nodes(item.body) if isinstance(item, Call) else [item])]


def logits_bytes(graph: Graph, dtype: str, rows: int) -> int:
    """Bytes of so many rows of what the model gives for each token, in its dtype and in float32, whole on each last rank."""
    widths = [value.width for name, value in graph.outputs.items() if name == "logits"]
    return sum(tensor_bytes(rows * width, dtype) + tensor_bytes(rows * width, LOGITS_DTYPE) for width in widths)
