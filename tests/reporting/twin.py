"""The page's script in Python: what a page gives for its data, so that every shipped spec is judged without a browser."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from archc.units import tensor_bytes


@dataclass(frozen=True)
class At:
    """Where the controls stand; None is what the spec says."""

    length: int
    batch: int = 1
    source: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    block: int | None = None

    @property
    def source_len(self) -> int:
        return self.source or self.length


def data_of(html: str) -> dict[str, Any]:
    """The data that a page holds."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def evaluate(model: dict[str, Any], form: int | list[Any], env: dict[str, int]) -> int:
    """A form, or the one at a place of the pool, at given symbols."""
    total = 0
    for coefficient, *factors in model["forms"][form] if isinstance(form, int) else form:
        value = int(coefficient)
        for factor in factors:
            value *= env[factor] if isinstance(factor, str) else _atom(model, model["atoms"][factor], env)
        total += value
    return total


def _atom(model: dict[str, Any], atom: list[Any], env: dict[str, int]) -> int:
    kind, first, second = atom
    if kind == "ceil":
        return -(-evaluate(model, first, env) // int(second))
    return min(evaluate(model, first, env), evaluate(model, second, env))


def flops(model: dict[str, Any], at: At) -> dict[str, int]:
    """FLOPs of each step."""
    return {step: evaluate(model, form, env_of(step, at)) for step, form in model["flops"].items()}


def env_of(step: str, at: At) -> dict[str, int]:
    """The symbols of a step."""
    env = {"batch": at.batch, "seq": at.length, "past": 0, "source": at.source_len, "memory": at.source_len}
    return env | {"seq": 1, "past": at.length - 1, "source": 0} if step.startswith("decode") else env


def weight_bytes(groups: list[list[Any]], dtype: str) -> int:
    """Bytes of [elements, dtype, count] in a model's dtype."""
    return sum(tensor_bytes(int(elements), dtype if own == "model" else own) * count for elements, own, count in groups)


def cache(model: dict[str, Any], at: At) -> dict[str, int]:
    """Used, allocated and paged bytes, growth, and states of fixed size."""
    found = dict.fromkeys(("used", "allocated", "paged", "per_token", "below_windows", "per_source", "fixed"), 0)
    rows = at.length + model["reserved_rows"]
    multiple = model["capacity_multiple"]
    env = {"batch": at.batch, "past": 0, "seq": at.length, "memory": at.source_len}
    allocated_env = {"batch": at.batch, "capacity": -(-rows // multiple) * multiple, "memory": at.source_len}
    for state in model["states"]:
        dtype = model_dtype = at.dtype or model["dtype"]
        if state["dtype"] != "model":
            dtype = state["dtype"]
        if at.kv_dtype and state["role"] != "recurrent":
            dtype = at.kv_dtype
        assert model_dtype
        used = tensor_bytes(evaluate(model, state["used"], env), dtype)
        allocated = tensor_bytes(evaluate(model, state["allocated"], allocated_env), dtype)
        paged = used
        if state["rows"] is not None:
            block = at.block or model["kinds"][state["kind"]]["block_size"] or model["default_block_size"]
            blocks = -(-evaluate(model, state["rows"], env) // block)
            paged = tensor_bytes(blocks * block * evaluate(model, state["row"], env), dtype)
        for count in state["counts"]:
            found["used"] += used * count
            found["allocated"] += allocated * count
            found["paged"] += paged * count
            _add_growth(found, model, state, dtype, count)
    return found


def _add_growth(found: dict[str, int], model: dict[str, Any], state: dict[str, Any], dtype: str, count: int) -> None:
    def elements(tokens: int) -> int:
        return evaluate(model, state["used"], {"batch": 1, "past": 0, "seq": tokens, "memory": tokens})

    if state["rows"] is None:
        found["fixed"] += tensor_bytes(elements(1), dtype) * count
    elif state["growth"] == "source":
        found["per_source"] += tensor_bytes(elements(1) * count, dtype)
    else:
        long = int(model["long_context"])
        far = tensor_bytes((elements(2 * long) - elements(long)) * count, dtype) // long
        first = tensor_bytes((elements(1) - elements(0)) * count, dtype)
        found["per_token"] += far
        found["below_windows"] += first if state["growth"] == "ring" else far
