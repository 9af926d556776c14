"""Bytes that one decode step must read, counted from the file and its caches: the bound that memory sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, NodeProto, TensorProto

from archc_exporters.runtime.folder import MODEL, Contract

COUNTED = (
    "weights that a step of one token a sequence reads once, the looked-up rows of tables, the chosen experts of each "
    "mixture (all different between sequences, up to their number), caches up to the rows in use, read once"
)
_MIXTURES = {"MoE": (2, 3, 4, 5, 6, 7), "QMoE": (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)}
"""Op of com.microsoft -> its inputs that have an expert a row."""
_TABLES = {
    "Gather": (0,),
    "GatherBlockQuantized": (0, 2, 3),
    # Cosines and sines, a position a row.
    "RotaryEmbedding": (1, 2, 3),
    "GroupQueryAttention": (7, 8),
}
"""Op -> its inputs of which a token reads one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes read by one step. Writing the new rows, activations and logits are left out: they are thousandths."""

    weight_bytes: int
    cache_bytes: int

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes


def decode_traffic(folder: Path, contract: Contract, *, batch: int, rows: int, source: int = 0) -> Traffic:
    """What a step of ``batch`` tokens reads when each sequence holds ``rows`` tokens, and an encoder has read ``source``."""
    graph = onnx.load(folder / MODEL, load_external_data=False).graph
    sizes = {tensor.name: _bytes(tensor) for tensor in graph.initializer}
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    shares: dict[str, float] = {}
    for node in _nodes(graph):
        for at, name in enumerate(node.input):
            if name in sizes and shapes[name]:
                share = _share(node, at, shapes[name][0], batch)
                shares[name] = max(shares.get(name, 0.0), share)
    weights = sum(round(sizes[name] * share) for name, share in shares.items())
    return Traffic(weight_bytes=weights, cache_bytes=contract.cache_bytes(batch=batch, capacity=rows, source=source))


def _share(node: NodeProto, at: int, count: int, batch: int) -> float:
    """How much of an initializer with ``count`` rows a node reads for one token a sequence."""
    if at in _TABLES.get(node.op_type, ()):
        return min(1.0, batch / count)
    if at in _MIXTURES.get(node.op_type, ()):
        chosen = next((attribute.i for attribute in node.attribute if attribute.name == "k"), 1)
        return min(1.0, batch * chosen / count)
    return 1.0


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes that run for one new token: of an If over the number of tokens, the branch for one."""
    for node in graph.node:
        yield node
        branches: dict[str, Any] = {
            attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")
        }
        if "else_branch" in branches:
            # Every If of an export asks whether there are many tokens.
            branches = {"else_branch": branches["else_branch"]}
        for inner in branches.values():
            yield from _nodes(inner)


def _bytes(tensor: TensorProto) -> int:
    for entry in tensor.external_data:
        if entry.key == "length":
            return int(entry.value)
    return len(tensor.raw_data) or tensor.ByteSize()
