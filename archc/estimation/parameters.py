"""Parameters and weight bytes. A tied weight is one weight; untrainable ones (correction biases) are bytes, not parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from archc.estimation.placed import Part, Placed, Placement
from archc.graph.graph import resolve_dtype
from archc.ir.values import Param
from archc.units import tensor_bytes


@dataclass(slots=True, eq=False, repr=False)
class Parameters:
    """Counts of elements. ``total`` leaves out ``mtp`` (extra prediction layers) and ``untrainable`` (saved buffers)."""

    total: int = 0
    active: int = 0
    embedding: int = 0
    untrainable: int = 0
    mtp: int = 0
    by_part: dict[Part, int] = field(default_factory=dict[Part, int])
    active_by_part: dict[Part, int] = field(default_factory=dict[Part, int])
    by_layer: dict[str, int] = field(default_factory=dict[str, int])
    active_by_layer: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def non_embedding(self) -> int:
        """All but what comes before the first layer; an untied head is in."""
        return self.total - self.embedding

    def to_json(self) -> dict[str, Any]:
        """The counts as plain data; ``by_part`` sums to ``total``."""
        return {
            "total": self.total,
            "active": self.active,
            "embedding": self.embedding,
            "non_embedding": self.non_embedding,
            "untrainable": self.untrainable,
            "mtp": self.mtp,
            "by_part": nested(self.by_part),
        }


@dataclass(slots=True, eq=False, repr=False)
class Weights:
    """Bytes of the weights as stored, saved buffers included; ``mtp_bytes`` are apart. ``by_part`` sums to ``bytes``."""

    bytes: int = 0
    mtp_bytes: int = 0
    by_part: dict[Part, int] = field(default_factory=dict[Part, int])
    by_dtype: dict[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "mtp_bytes": self.mtp_bytes, "by_dtype": self.by_dtype}


def count_parameters(placement: Placement) -> Parameters:
    """Elements of the weights that training moves, and of the saved buffers beside them."""
    counts = Parameters()
    for placed, role, param in distinct_weights(placement):
        elements = param.elements * placed.count
        if not param.trainable:
            counts.untrainable += elements
            continue
        active = placed.node.op.active_elements(role, param) * placed.count
        counts.total += elements
        counts.active += active
        counts.by_part[placed.part] = counts.by_part.get(placed.part, 0) + elements
        counts.active_by_part[placed.part] = counts.active_by_part.get(placed.part, 0) + active
        counts.by_layer[placed.layer] = counts.by_layer.get(placed.layer, 0) + elements
        counts.active_by_layer[placed.layer] = counts.active_by_layer.get(placed.layer, 0) + active
        if placed.part[0] == "embedding":
            counts.embedding += elements
    return counts


def count_weight_bytes(placement: Placement, dtype: str) -> Weights:
    """Bytes of the weights in ``dtype``; those whose dtype is fixed keep their own."""
    weights = Weights()
    for placed, _, param in distinct_weights(placement):
        own = resolve_dtype(param.dtype, dtype)
        count_bytes = tensor_bytes(param.elements, own) * placed.count
        weights.bytes += count_bytes
        weights.by_part[placed.part] = weights.by_part.get(placed.part, 0) + count_bytes
        weights.by_dtype[own] = weights.by_dtype.get(own, 0) + count_bytes
    return weights


def distinct_weights(placement: Placement) -> Iterator[tuple[Placed, str, Param]]:
    """Each weight once, where it is first used."""
    seen: set[int] = set()
    for placed in placement.nodes:
        for role, param in placed.node.params.items():
            if id(param) not in seen:
                seen.add(id(param))
                yield placed, role, param


def nested(flat: dict[Part, int]) -> dict[str, Any]:
    """``("ffn", "moe", "router")`` as dictionaries inside each other.

    A part that has both a number of its own and parts below keeps its own under ``own``.
    """
    tree: dict[str, Any] = {}
    for part, number in flat.items():
        if number:
            _put(tree, part, number)
    return tree


def _put(tree: dict[str, Any], part: Part, number: int) -> None:
    name, rest = part[0], part[1:]
    known = tree.get(name)
    if not rest and not isinstance(known, dict):
        tree[name] = number if known is None else known + number
        return
    inner = cast("dict[str, Any]", known) if isinstance(known, dict) else {} if known is None else {"own": known}
    tree[name] = inner
    _put(inner, rest or ("own",), number)
