"""Random inputs for files that see all their tokens at once, and for what an encoder or a prefix adds to a conversation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from archc.graph.graph import Graph
from archc.ir.values import Value
from archc.ops.linear import Embedding
from archc_exporters.onnx.arrays import Array
from archc_exporters.onnx.parts import graph_inputs
from archc_exporters.onnx.states import ENCODER


def whole_feeds(graph: Graph, lengths: Sequence[int]) -> dict[str, Array]:
    """Inputs of a batch with so many tokens a row, every second row padded on the left, the others on the right."""
    return {name: _array(graph, name, lengths) for name in graph_inputs(graph, "model")}


def given_feeds(graph: Graph, lengths: Sequence[int]) -> dict[str, Array]:
    """What stays the same in a conversation: an encoder's inputs with so many tokens a row, a prefix of as many."""
    names = [name for name in graph_inputs(graph, "encoder") if name.startswith(ENCODER)]
    found = {name: _array(graph, name, lengths) for name in names}
    if "prefix_length" in graph.inputs:
        found["prefix_length"] = np.array(lengths, np.int64)
    return found


def _array(graph: Graph, name: str, lengths: Sequence[int]) -> Array:
    rng = np.random.default_rng(len(name))
    value = graph.inputs[name]
    shape = tuple(dim if isinstance(dim, int) else max(lengths) for dim in value.shape[1:])
    if value.dtype != "int64":
        return rng.standard_normal((len(lengths), *shape)).astype(np.float32)
    if name.endswith("attention_mask"):
        column = np.arange(max(lengths))
        rows = [column >= max(lengths) - n if row % 2 else column < n for row, n in enumerate(lengths)]
        return np.array(rows).astype(np.int64)
    return rng.integers(0, _ids(graph, value), (len(lengths), *shape))


def _ids(graph: Graph, value: Value) -> int:
    """How many ids an input may hold: as many as the smallest table that it reads has rows, of the model's vocabulary."""
    rows = [
        node.op.num_embeddings for node in graph.root.nodes() if isinstance(node.op, Embedding) and value in node.inputs
    ]
    return min([*rows, graph.vocab_size or 1 << 62]) if rows else 2
