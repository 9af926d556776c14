"""The script's part about ranks and time in Python."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from archc.planning.timing.roofline import Roof
from archc.reporting.ranks import CUTS, PP
from archc.units import tensor_bytes
from tests.reporting.twin import At, env_of, evaluate


@dataclass(frozen=True)
class Split:
    """Ranks of a page: ``ep`` is 1 or ``tp``."""

    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def cut(self) -> int:
        return CUTS.index((self.tp, self.ep))

    @property
    def stages(self) -> int:
        return PP.index(self.pp)


def _dtype(model: dict[str, Any], own: str, at: At) -> str:
    return (at.dtype or model["dtype"]) if own == "model" else own


def _state_dtype(model: dict[str, Any], own: str, role: str, at: At) -> str:
    return at.kv_dtype if at.kv_dtype and role != "recurrent" else _dtype(model, own, at)


def problems(model: dict[str, Any], split: Split) -> list[str]:
    """Why it can't be."""
    ranks = model["ranks"]
    return [*ranks["cut_problems"][split.cut], *ranks["pp_problems"][split.stages]]


def notes(model: dict[str, Any], split: Split) -> list[str]:
    """What is held more than once, or unevenly."""
    ranks = model["ranks"]
    return [*ranks["cut_notes"][split.cut], *ranks["pp_notes"][split.stages]]


def weights(model: dict[str, Any], split: Split, at: At) -> list[int]:
    """Bytes on a rank of each stage."""
    found = [0] * model["ranks"]["stages"][split.stages]
    for own, elements, counts in model["ranks"]["weights"]:
        each = tensor_bytes(int(elements[split.cut]), _dtype(model, own, at))
        for stage, count in enumerate(counts[split.stages]):
            found[stage] += each * count
    return found


def cache(model: dict[str, Any], split: Split, at: At, which: str) -> list[int]:
    """Used or allocated bytes on a rank of each stage."""
    found = [0] * model["ranks"]["stages"][split.stages]
    rows, multiple = at.length + model["reserved_rows"], model["capacity_multiple"]
    env = {"batch": at.batch, "past": 0, "seq": at.length, "memory": at.source_len}
    env["capacity"] = -(-rows // multiple) * multiple
    for state in model["ranks"]["states"]:
        dtype = _state_dtype(model, state["dtype"], state["role"], at)
        each = tensor_bytes(evaluate(model, state[which][split.cut], env), dtype)
        for stage, count in enumerate(state["counts"][split.stages]):
            found[stage] += each * count
    return found


def seconds(model: dict[str, Any], step: str, split: Split, at: At, roof: Roof) -> list[float]:
    """The time of each stage, with what it sends."""
    found = [0.0] * model["ranks"]["stages"][split.stages]
    for op in model["steps"]["ops"]:
        env = env_of(step, at)
        if op["last"] and step == "prefill":
            env["seq"] = 1
        flops, moved = _work(model, op, step, split, at, env)
        sent = sum(roof.wire_s(count, split.tp) for count in _sends(model, op, split, at, env))
        for stage, count in enumerate(op["counts"][split.stages]):
            found[stage] += max(flops * count / roof.flops_per_s, moved * count / roof.bytes_per_s) + sent * count
    for stage, values in enumerate(model["steps"]["handed_on"][split.stages]):
        out = sum(tensor_bytes(evaluate(model, form, env_of(step, at)), _dtype(model, own, at)) for form, own in values)
        found[stage] += roof.wire_s(out // split.tp, split.tp * split.pp)
    return found


def _work(
    model: dict[str, Any], op: dict[str, Any], step: str, split: Split, at: At, env: dict[str, int]
) -> tuple[int, int]:
    cut, is_decode = split.cut, step == "decode"
    flops = evaluate(model, op["few" if is_decode else "many"], env)
    moved = 0
    for written, read, local, own, role, passes in op["states"] if step != "forward" else ():
        whole = evaluate(model, written, env)
        if whole:
            rows = evaluate(model, read, env) if is_decode else whole
            elements = -(-rows * evaluate(model, local[cut], env) // whole)
            moved += tensor_bytes(elements, _state_dtype(model, own, role, at)) * (passes if is_decode else 1)
    if flops == 0:
        return 0, moved
    tokens = evaluate(model, op["rows"], env)
    for elements, own, chosen in op["weights"]:
        held = int(elements[cut])
        if chosen < 1:
            held = math.ceil(held * -math.expm1(tokens * math.log1p(-chosen)))
        moved += tensor_bytes(held, _dtype(model, own, at))
    for form, own, is_cut in op["values"]:
        elements = -(-evaluate(model, form, env) // (split.tp if is_cut else 1))
        moved += tensor_bytes(elements, _dtype(model, own, at))
    return -(-flops // op["ways"][cut]), moved


def _sends(model: dict[str, Any], op: dict[str, Any], split: Split, at: At, env: dict[str, int]) -> list[int]:
    found: list[int] = []
    tp = split.tp
    for kind, form, own, times, there in op["sends"]:
        if there[split.cut]:
            whole = tensor_bytes(evaluate(model, form, env), _dtype(model, own, at)) * times
            by_kind = {"all_reduce": whole * 2 * (tp - 1) // tp, "all_gather": whole * (tp - 1) // tp}
            found.append(by_kind.get(kind, 2 * whole // tp * (tp - 1) // tp))
    return found
