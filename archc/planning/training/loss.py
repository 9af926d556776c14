"""Logits and cross-entropy of one micro-batch on one rank, in the two forms that ``LOSSES`` names.

With L = tokens x the rank's rows of the vocabulary:

* ``plain``, ``functional.cross_entropy(logits.float(), targets)``: the model's logits are L elements of its dtype; log-softmax
  keeps L float32 until backward, beside an id of 8 bytes a token and the sum of weights, 4 bytes; backward then makes the
  gradients of the log-probabilities and of the logits, L float32 each. A chunked one (checkpointed, so many tokens at a time) has
  all but the ids of one chunk only.
* ``fused``, ``archc train``'s: what stands behind the last layer runs on a chunk of tokens at a time, and its gradients are taken
  at once. Kept are the gradients of what it reads of the layers, and of its own weights, a second one, float32, while chunks add
  to it; nothing else of it is an activation. Beside them one chunk has log-softmax and both gradients, or one of the logits and
  one of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from archc.estimation.activations import trunk_and_tail
from archc.graph.graph import Graph, resolve_dtype
from archc.ir.values import Call, Node, Param, Value
from archc.planning.parallel import Parallel
from archc.planning.stages import is_stream
from archc.units import tensor_bytes

LOSSES = ("plain", "fused")

MOST_LOGITS = 1 << 27
LEAST_CHUNK_TOKENS = 256


def chunk_tokens(rows: int) -> int:
    """Tokens that the fused loss takes at once where nothing else is asked, by the rows of the vocabulary."""
    return max(LEAST_CHUNK_TOKENS, MOST_LOGITS // max(rows, 1))


@dataclass(frozen=True, slots=True)
class LossBytes:
    """``logits`` as the model gives them, ``saved`` by the loss until its backward, ``working`` beside both at most.

    ``is_chunked``: logits are made and dropped a chunk at a time. ``waiting``: gradients of tied tables, which backward holds
    until it has come to the embedding.
    """

    tokens: int
    rows: int
    logits: int
    saved: int
    working: int
    is_chunked: bool
    waiting: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "vocabulary_rows": self.rows,
            "logits_bytes": self.logits,
            "saved_bytes": self.saved,
            "working_bytes": self.working,
        }


def loss_bytes(
    graph: Graph, parallel: Parallel, *, tokens: int, dtype: str, loss_chunk: int | None, loss: str = "plain"
) -> LossBytes | None:
    """The loss over ``tokens`` of a rank; None where a model has no logits of tokens."""
    logits = graph.outputs.get("logits")
    if logits is None or len(logits.shape) < 3:
        return None
    own = resolve_dtype(logits.dtype, dtype)
    rows = -(-logits.width // parallel.tp) if logits.axis == "vocab" else logits.width
    if loss == "fused":
        return _fused(graph, parallel, tokens, rows, own, dtype, loss_chunk)
    at_once = tokens if loss_chunk is None else min(tokens, loss_chunk)
    wide = tensor_bytes(at_once * rows, "float32")
    ids = tensor_bytes(tokens, "int64")
    return LossBytes(tokens, rows, tensor_bytes(at_once * rows, own), wide + ids + 4, 2 * wide, loss_chunk is not None)


def _fused(
    graph: Graph, parallel: Parallel, tokens: int, rows: int, own: str, dtype: str, loss_chunk: int | None
) -> LossBytes:
    at_once = min(tokens, loss_chunk or chunk_tokens(rows))
    chunks = -(-tokens // at_once)
    streams = sum(tensor_bytes(tokens * value.width, resolve_dtype(value.dtype, dtype)) for value in _read(graph))
    sizes = {
        param: tensor_bytes(_elements(param, parallel.tp), resolve_dtype(param.dtype, dtype))
        for param in _trained(trunk_and_tail(graph)[1])
    }
    weights = sum(sizes.values())
    waiting = sum(sizes.get(param, 0) for param in _trained(trunk_and_tail(graph)[0]))
    wide, logits = tensor_bytes(at_once * rows, "float32"), tensor_bytes(at_once * rows, own)
    saved = streams + weights
    # While the last chunk runs: the layers' outputs, their gradients so far, and the weights' gradients so far.
    known = streams + streams * (chunks - 1) // chunks
    if chunks > 1:
        known += sum(max(size, tensor_bytes(_elements(param, parallel.tp), "float32")) for param, size in sizes.items())
    # At the end the gradients of all chunks are put together.
    joined = streams + saved + (streams if chunks > 1 else 0)
    most = max(known + max(3 * wide, logits + weights), joined)
    return LossBytes(tokens, rows, logits, saved, max(most - logits - saved, 0), True, waiting)


def _read(graph: Graph) -> list[Value]:
    """What stands behind the last layer reads of all before it, and gives a gradient."""
    trunk, tail = trunk_and_tail(graph)
    made = {value for item in trunk for value in item.outputs}
    given = dict.fromkeys(value for item in tail for value in item.inputs)
    return [value for value in given if value in made and is_stream(value)]


def _trained(items: list[Node | Call]) -> list[Param]:
    """The weights that are trained, each once."""
    found = (param for item in items for param in _params(item))
    return [param for param in dict.fromkeys(found) if param.trainable]


def _params(item: Node | Call) -> Iterator[Param]:
    if isinstance(item, Node):
        yield from item.params.values()
    else:
        for inner in item.body.items:
            yield from _params(inner)


def _elements(param: Param, tp: int) -> int:
    """Of a rank's piece, cut along the vocabulary."""
    total = 1
    for size, axis in zip(param.shape, param.axes, strict=True):
        total *= -(-size // tp) if axis == "vocab" else size
    return total
