"""Makes the tables beside this file: ``python -m archc_exporters.onnx.placement.generate CUDA.json CPU.json``.

The two inputs list what an onnxruntime-gpu wheel registers (``get_all_opkernel_def()``: domain, op, versions, types). Host
memory and function bodies are asked of sessions, so the CUDA provider of the same version has to load.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as native  # pyright: ignore[reportAttributeAccessIssue]

from archc_exporters.onnx.placement.probe import one_node, placed, probe, session
from archc_exporters.onnx.placement.schemas import CONTRIB, short_type
from archc_exporters.onnx.placement.tables import CPU, CUDA

DATA = Path(__file__).parent / "data"
Types = dict[str, frozenset[str]]


def main(cuda_file: str, cpu_file: str) -> None:
    """Write the kernels of both providers and the schemas of com.microsoft."""
    schemas = _schemas()
    for provider, source in ((CUDA, cuda_file), (CPU, cpu_file)):
        listed = json.loads(Path(source).read_text("utf-8"))
        if (listed["provider"], listed["onnxruntime"]) != (provider, ort.__version__):
            raise SystemExit(
                f"{source}: kernels of {listed['provider']} {listed['onnxruntime']}, not {provider} {ort.__version__}"
            )
        _write(f"{provider[:-17].lower()}_kernels-{ort.__version__}", _kernels(listed["kernels"], provider, schemas))
    _write(f"contrib_schemas-{ort.__version__}", _contrib(schemas))


def _schemas() -> dict[tuple[str, str], dict[int, Any]]:
    found: dict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
    for schema in native.get_all_operator_schema():
        found[schema.domain, schema.name][schema.since_version] = schema
    return found


def _kernels(
    rows: list[dict[str, Any]], provider: str, schemas: dict[tuple[str, str], dict[int, Any]]
) -> dict[str, Any]:
    grouped: dict[tuple[str, str], dict[tuple[int, int | None], list[dict[str, Any]]]] = defaultdict(dict)
    for row in rows:
        lowest, highest = row["versions"]
        grouped[row["domain"], row["op"]].setdefault((lowest, highest), []).append(row)
    sets: dict[str, int] = {}
    ops: dict[str, dict[str, Any]] = defaultdict(dict)
    for (domain, op), versions in sorted(grouped.items()):
        ops[domain][op] = []
        for (lowest, highest), group in sorted(versions.items(), key=lambda item: item[0][0]):
            alternatives = _merged([{name: frozenset(types) for name, types in row["types"].items()} for row in group])
            entry: dict[str, Any] = {
                "from": lowest,
                "to": highest,
                "types": [_indexed(types, sets) for types in alternatives],
            }
            if provider == CUDA:
                entry |= _host(schemas.get((domain, op), {}), lowest, highest, group)
            ops[domain][op].append(entry)
    return {"onnxruntime": ort.__version__, "provider": provider, "sets": list(sets), "kernels": ops}


def _host(schemas: dict[int, Any], lowest: int, highest: int | None, group: list[dict[str, Any]]) -> dict[str, Any]:
    since = [v for v in schemas if lowest <= v <= (highest or lowest)] or [v for v in schemas if v <= lowest]
    if since:
        found = probe(schemas[max(since)], group[0], (CUDA, CPU))
        if found is not None:
            return {key: places for key, places in zip(("host_in", "host_out"), found, strict=True) if places}
    print(f"not probed: {group[0]['domain']}.{group[0]['op']} {lowest}-{highest or ''}", file=sys.stderr)
    return {"probed": False}


def _merged(alternatives: list[Types]) -> list[Types]:
    """Alternatives that differ in one constraint only are one, with the union of its types."""
    merged: list[Types] = []
    for types in alternatives:
        for other in merged:
            if other.keys() == types.keys():
                different = [name for name in types if types[name] != other[name]]
                if len(different) <= 1:
                    other.update({name: other[name] | types[name] for name in different})
                    break
        else:
            merged.append(dict(types))
    # A union may have made two alternatives alike in all but one constraint.
    return merged if len(merged) == len(alternatives) else _merged(merged)


def _indexed(types: Types, sets: dict[str, int]) -> dict[str, int]:
    return {
        name: sets.setdefault(" ".join(sorted(map(short_type, kinds))), len(sets))
        for name, kinds in sorted(types.items())
    }


def _contrib(schemas: dict[tuple[str, str], dict[int, Any]]) -> dict[str, Any]:
    ops: dict[str, Any] = {}
    for (domain, op), versions in sorted(schemas.items()):
        if domain == CONTRIB:
            schema = versions[max(versions)]
            ops[op] = {
                "in": [_formal(formal, schema) for formal in schema.inputs],
                "out": [_formal(formal, schema) for formal in schema.outputs],
                "attributes": sorted(schema.attributes),
            }
            if body := _function(schema):
                ops[op]["body"] = body
    return {"onnxruntime": ort.__version__, "domain": CONTRIB, "ops": ops}


def _formal(formal: Any, schema: Any) -> list[str]:
    """[name, type variable or type, Single, Optional or Variadic]."""
    only = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    allowed = only.get(formal.typeStr, [])
    type_ = (
        formal.typeStr
        if formal.typeStr in only and len(allowed) != 1
        else short_type(allowed[0] if allowed else formal.typeStr)
    )
    return [formal.name, type_, str(formal.option).rpartition(".")[2]]


def _function(schema: Any) -> list[str]:
    """Op types that replace a node no kernel takes; empty where the op has no function."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    # bfloat16 has the fewest kernels on the CPU, double and float16 the fewest after it.
    for wanted in ("tensor(bfloat16)", "tensor(double)", "tensor(float16)"):
        try:
            sides = [
                _with(wanted, letter, formals, allowed)
                for letter, formals in (("x", schema.inputs), ("y", schema.outputs))
            ]
            ops = [op for _, op in placed(session(one_node(schema, *sides), (CPU,)))]
        except Exception:  # No kernel and no function, or not a legal node at all.
            continue
        if schema.name not in ops:
            return ops
    return []


def _with(wanted: str, letter: str, formals: Any, allowed: dict[str, list[str]]) -> list[tuple[str, int]]:
    kinds = [allowed.get(formal.typeStr) or [formal.typeStr] for formal in formals]
    names = [short_type(wanted if wanted in kind else kind[0]).upper() for kind in kinds]
    return [(f"{letter}{i}", TensorProto.DataType.Value(name)) for i, name in enumerate(names)]


def _write(name: str, data: dict[str, Any]) -> None:
    path = DATA / f"{name}.json"
    path.write_text(
        json.dumps(data, separators=(",", ":")).replace('"kernels":', '\n"kernels":').replace('],"', '],\n"') + "\n"
    )
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
