"""What a diagram tells of a kind in words: the keys that a spec states, and the bytes that a layer keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from pydantic import BaseModel

from archc.graph.graph import resolve_dtype
from archc.ir.size import evaluate, product
from archc.ir.values import Body, Call, Node, Param, State
from archc.spec.kind import Kind
from archc.units import DTYPE_BITS, gib, tensor_bytes

FAR = 1 << 40
"""Tokens beyond every window: growth is measured between this and twice this."""


def stated(section: BaseModel) -> list[str]:
    """``num_heads 32``: every key that a spec states of a kind, in the order of the kind's own."""
    found: list[str] = []
    for name, field in type(section).model_fields.items():
        if name in section.model_fields_set and (value := getattr(section, name)) is not None:
            found.append(f"{field.alias or name} {_value(value)}")
    return found


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, BaseModel):
        kind = value.kind_name if isinstance(value, Kind) else ""
        inner = ", ".join(stated(value))
        return f"{kind} ({inner})" if kind and inner else kind or f"({inner})"
    if isinstance(value, list | tuple):
        items = cast("list[Any]", list(cast("tuple[Any, ...]", value)))
        return f"{len(items):,} values" if len(items) > 8 else " ".join(_value(item) for item in items)
    return str(value)


def nodes_of(item: Node | Call | Body) -> Iterator[Node]:
    """Every node at or below a place of a graph."""
    if isinstance(item, Node):
        yield item
        return
    for inner in item.items if isinstance(item, Body) else item.body.items:
        yield from nodes_of(inner)


def params_of(item: Node | Call | Body) -> list[Param]:
    """Its weights that training moves, a shared one once."""
    found = {param: None for node in nodes_of(item) for param in node.params.values() if param.trainable}
    return list(found)


def kept(body: Body, dtype: str) -> list[str]:
    """What a layer keeps for one sequence, in words; nothing where it keeps nothing."""
    growing: dict[str, int] = {}
    rings: dict[int, int] = {}
    fixed = 0
    for state in (state for node in nodes_of(body) for state in node.states.values()):
        own = resolve_dtype(state.dtype, dtype)
        if state.token_dim is None:
            fixed += tensor_bytes(_elements(state, 1), own)
            continue
        near, far = _elements(state, FAR) * DTYPE_BITS[own], _elements(state, 2 * FAR) * DTYPE_BITS[own]
        if far > near:
            token = "token of the encoder" if state.growth == "source" else "token"
            growing[token] = growing.get(token, 0) + far - near
        else:
            rows = evaluate(state.used[state.token_dim], _tokens(FAR))
            rings[rows] = rings.get(rows, 0) + near // rows
    return [
        *(f"cache {-(-bits // (8 * FAR)):,} B a {token}" for token, bits in growing.items()),
        *(f"cache {-(-bits // 8):,} B a token, {rows:,} at most" for rows, bits in rings.items()),
        *([f"state {gib(fixed)} a sequence"] if fixed else []),
    ]


def _elements(state: State, tokens: int) -> int:
    return evaluate(product(state.used), _tokens(tokens))


def _tokens(count: int) -> dict[str, int]:
    return {"batch": 1, "past": 0, "seq": count, "memory": count}
