"""The canonical JSON of a graph: folded over equal scopes, byte-stable, so that a diff of two shows what changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, is_dataclass
from typing import Any, cast

from archc._version import __version__
from archc.graph.graph import LAYER, Graph
from archc.ir.size import Dim, Size
from archc.ir.values import Body, Node, TensorType, Value

FORMAT = 1


def to_lock(graph: Graph) -> dict[str, Any]:
    """The graph as plain data: ``blocks`` maps a hash to a body, ``model`` is the root body, ``layers`` lists hashes."""
    blocks: dict[str, Any] = {}
    hashes: dict[Body, str] = {}
    model = _body(graph.root, blocks, hashes)
    lock: dict[str, Any] = {
        "format": FORMAT,
        "archc": __version__,
        "name": graph.name,
        "dtype": graph.dtype,
        "vocab_size": graph.vocab_size,
        "max_position_embeddings": graph.max_position_embeddings,
        "mask": graph.mask,
        "plugins": {name: list(offered) for name, offered in graph.plugins.items()},
        "layers": [hashes[call.body] for call in graph.root.calls() if LAYER.match(call.name)],
        "model": model,
        "blocks": blocks,
    }
    if graph.mtp is not None:
        lock["mtp"] = to_lock(graph.mtp)
    return lock


def to_text(graph: Graph) -> str:
    """The lockfile's text; equal graphs give equal bytes."""
    return json.dumps(to_lock(graph), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _body(body: Body, blocks: dict[str, Any], hashes: dict[Body, str]) -> dict[str, Any]:
    numbers: dict[Value, int] = {}

    def number(value: Value) -> int:
        return numbers.setdefault(value, len(numbers))

    inputs = [[number(value), _type(value.type)] for value in body.inputs]
    items: list[dict[str, Any]] = []
    for item in body.items:
        ins = [number(value) for value in item.inputs]
        if isinstance(item, Node):
            items.append(
                {
                    "op": item.op.op_name,
                    "name": item.name,
                    "in": ins,
                    "out": [[number(value), _type(value.type)] for value in item.outputs],
                    "attrs": _attrs(item.op),
                    "params": {
                        role: {
                            "name": p.name,
                            "shape": list(p.shape),
                            "axes": list(p.axes),
                            "dtype": p.dtype,
                            "init": p.init,
                            "trainable": p.trainable,
                        }
                        for role, p in item.params.items()
                    },
                    "states": {
                        role: {
                            "name": s.name,
                            "used": [_dim(d) for d in s.used],
                            "allocated": [_dim(d) for d in s.allocated],
                            "growth": s.growth,
                            "role": s.role,
                            "dtype": s.dtype,
                            "axes": list(s.axes),
                            "token_dim": s.token_dim,
                            "reserved": s.reserved,
                        }
                        for role, s in item.states.items()
                    },
                }
            )
        else:
            if item.body not in hashes:
                text = _body(item.body, blocks, hashes)
                digest = hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:16]
                hashes[item.body] = digest
                blocks[digest] = text
            outs = [number(value) for value in item.outputs]
            items.append({"scope": item.name, "block": hashes[item.body], "in": ins, "out": outs})
    return {"label": body.label, "in": inputs, "items": items, "out": [number(value) for value in body.outputs]}


def _type(kind: TensorType) -> str:
    return repr(kind)


def _dim(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _attrs(op: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(op, field.name)) for field in fields(op)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    if isinstance(value, Size):
        return str(value)
    return _attrs(value) if is_dataclass(value) else value
