"""Logits and cross-entropy, in the form ``functional.cross_entropy(logits.float(), targets)``, of one micro-batch on one rank.

With L = tokens x the rank's rows of the vocabulary: the model's logits are L elements of its dtype; log-softmax keeps L float32
until backward, beside an id of 8 bytes a token and the sum of weights, 4 bytes; backward then makes the gradients of the
log-probabilities and of the logits, L float32 each. A chunked loss (checkpointed, so many tokens at a time) has all but the ids
of one chunk only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archc.graph.graph import Graph, resolve_dtype
from archc.planning.parallel import Parallel
from archc.units import tensor_bytes


@dataclass(frozen=True, slots=True)
class LossBytes:
    """``logits`` as the model gives them, ``saved`` by the loss until its backward, ``working`` in that backward.

    ``is_chunked``: logits are made and dropped a chunk at a time.
    """

    tokens: int
    rows: int
    logits: int
    saved: int
    working: int
    is_chunked: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "vocabulary_rows": self.rows,
            "logits_bytes": self.logits,
            "saved_bytes": self.saved,
            "working_bytes": self.working,
        }


def loss_bytes(
    graph: Graph, parallel: Parallel, *, tokens: int, dtype: str, loss_chunk: int | None
) -> LossBytes | None:
    """The loss over ``tokens`` of a rank; None where a model has no logits of tokens."""
    logits = graph.outputs.get("logits")
    if logits is None or len(logits.shape) < 3:
        return None
    own = resolve_dtype(logits.dtype, dtype)
    rows = -(-logits.width // parallel.tp) if logits.axis == "vocab" else logits.width
    at_once = tokens if loss_chunk is None else min(tokens, loss_chunk)
    wide = tensor_bytes(at_once * rows, "float32")
    ids = tensor_bytes(tokens, "int64")
    return LossBytes(tokens, rows, tensor_bytes(at_once * rows, own), wide + ids + 4, 2 * wide, loss_chunk is not None)
