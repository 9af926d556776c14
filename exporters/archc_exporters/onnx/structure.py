"""What a file keeps to without being run: onnx's rules, onnxruntime's ops, symbolic sizes, caches in pairs, whole data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.checker import ValidationError, check_model
from onnx.helper import tensor_dtype_to_np_dtype

from archc.errors import CheckFailedError
from archc_exporters.onnx.states import PAST, PRESENT, present_name

_PACKED: dict[int, int] = {onnx.TensorProto.INT4: 2, onnx.TensorProto.UINT4: 2}
"""Elements a byte of types that are narrower than one."""

SOURCE = "source"
"""The dimension of an encoder's tokens."""
_TOKENS = {"input_ids": "seq", "attention_mask": "seq", "encoder_input_ids": SOURCE, "encoder_attention_mask": SOURCE}
"""Inputs that have an entry a token, and the name of that dimension."""


def check_structure(path: Path, *, has_data: bool = True) -> str:
    """Judge ``model.onnx`` alone; ``has_data`` says whether its weights lie beside it. Returns what was checked.

    Raises:
        CheckFailedError: the file breaks a rule; all of them are named.
    """
    model = onnx.load(path, load_external_data=False)
    try:
        if has_data:
            check_model(str(path))
        else:
            check_model(_with_weights_as_inputs(model))
    except ValidationError as error:
        raise CheckFailedError(f"{path.name}: onnx.checker refuses the file: {error}") from error
    problems = [
        *_op_problems(model),
        *_name_problems(model.graph),
        *_size_problems(model.graph),
        *_cache_problems(model.graph),
        *_data_problems(path, model.graph, has_data),
    ]
    if problems:
        shown = problems[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
        raise CheckFailedError(f"{path.name} is malformed\n  " + "\n  ".join(shown))
    data = "all weights have their bytes" if has_data else "the weights' places are declared, their bytes are absent"
    return (
        f"structure: onnx.checker, {sum(1 for _ in _nodes(model.graph))} nodes known to onnxruntime, batch and seq "
        f"symbolic, caches in pairs, names unique, {data}"
    )


def _with_weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The checker wants to see external data; what is no initializer has none."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.initializer[:]
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            copy.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
        else:
            copy.graph.initializer.append(tensor)
    return copy


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes of the graph and of the branches inside."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _op_problems(model: onnx.ModelProto) -> Iterator[str]:
    """Ops, attributes and numbers of inputs that the installed onnxruntime has no schema for in the file's opsets."""
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    schemas: dict[tuple[str, str], Any] = {}
    # A binary module, which type checkers can't see.
    runtime: Any = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    for schema in runtime.get_all_operator_schema():
        known = schemas.get((schema.domain, schema.name))
        newest = known is None or known.since_version < schema.since_version
        if schema.since_version <= opsets.get(schema.domain, 0) and newest:
            schemas[schema.domain, schema.name] = schema
    for node in _nodes(model.graph):
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        schema = schemas.get((node.domain, node.op_type))
        if schema is None or schema.deprecated:
            version = opsets.get(node.domain)
            where = f"opset {version} of {node.domain or 'ai.onnx'}" if version else "any opset that the file imports"
            yield f"{node.name}: {op} is no op of {where}"
            continue
        strange = [attribute.name for attribute in node.attribute if attribute.name not in schema.attributes]
        if strange:
            yield f"{node.name}: {op} has no attribute {', '.join(strange)}"
        if len(node.input) > schema.max_input:
            yield f"{node.name}: {op} takes {schema.max_input} inputs, not {len(node.input)}"


def _name_problems(graph: onnx.GraphProto) -> Iterator[str]:
    nodes = Counter(node.name for node in _nodes(graph))
    # An initializer or an output of a node that is called like an input would hide it.
    values = Counter([value.name for value in graph.input] + [tensor.name for tensor in graph.initializer])
    values.update(name for node in _nodes(graph) for name in node.output if name)
    for what, names in (("nodes", nodes), ("values", values)):
        yield from (f"{count} {what} are called {name!r}" for name, count in names.items() if count > 1)


def _dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _size_problems(graph: onnx.GraphProto) -> Iterator[str]:
    for value in (*graph.input, *graph.output):
        if not all(_dims(value)):
            yield f"{value.name} has no shape, or dimensions without a name or a number"
    inputs = {value.name: value for value in graph.input}
    # onnxruntime-genai's mask counts the tokens before the call too, and comes with positions.
    counted = {**_TOKENS, "attention_mask": "total"} if "position_ids" in inputs else _TOKENS
    for name, tokens in ((name, tokens) for name, tokens in counted.items() if name in inputs):
        if _dims(inputs[name]) != ["batch", tokens]:
            yield f"{name} is {_dims(inputs[name])}, not ['batch', '{tokens}']"
    for output in graph.output:
        if _dims(output)[:1] != ["batch"]:
            yield f"{output.name} is {_dims(output)}; its first dimension should be batch"
    # With the head on the last token alone, seq is 1; a head over one vector has none, and pictures have a fixed number.
    first = graph.output[0]
    counts = "input_ids" in inputs and len(_dims(first)) > 2
    if counts and _dims(first)[1:2] not in (["seq"], [1]):
        yield f"{first.name} is {_dims(first)}; its second dimension should be seq"


def _cache_problems(graph: onnx.GraphProto) -> Iterator[str]:
    outputs = {value.name: value for value in graph.output if value.name.startswith(f"{PRESENT}.")}
    if "input_ids" not in {value.name for value in graph.input}:
        # An encoder's file gives what another file keeps.
        outputs = {name: value for name, value in outputs.items() if SOURCE not in _dims(value)}
    for past in (value for value in graph.input if value.name.startswith(PAST)):
        present = outputs.pop(present_name(past.name), None)
        if present is None:
            if SOURCE in _dims(past):
                continue
            yield f"{past.name} has no output {present_name(past.name)}"
            continue
        types = past.type.tensor_type.elem_type, present.type.tensor_type.elem_type
        if types[0] != types[1]:
            yield f"{past.name} and {present.name} differ in dtype"
        if _dims(past)[0] != "batch" or not _alike(_dims(past), _dims(present)):
            yield f"{past.name} is {_dims(past)}, {present.name} {_dims(present)}"
    yield from (f"{name} is the output of no cache" for name in outputs)


def _alike(past: list[int | str], present: list[int | str]) -> bool:
    """Equal numbers; a cache that grows is one symbol longer than before."""
    grows = "past_sequence_length"
    return len(past) == len(present) and all(
        a == b or (a == grows and isinstance(b, str)) for a, b in zip(past, present, strict=True)
    )


def _data_problems(path: Path, graph: onnx.GraphProto, has_data: bool) -> Iterator[str]:
    """Every weight has as many bytes as its shape and dtype take, inside the file, and shares them with no other."""
    places: list[tuple[str, int, int, str]] = []
    for tensor in graph.initializer:
        needed = _needed_bytes(tensor)
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            if tensor.HasField("raw_data") and len(tensor.raw_data) != needed:
                yield f"{tensor.name} holds {len(tensor.raw_data)} bytes, not {needed}"
            continue
        info = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = int(info.get("offset", "0")), int(info.get("length", str(needed)))
        if length != needed:
            yield f"{tensor.name} has {length} bytes of data, not {needed}"
        places.append((info["location"], offset, offset + length, tensor.name))
    if has_data:
        sizes = {location: _size(path.parent / location) for location, *_ in places}
        yield from (f"{name} ends behind the end of {at}" for at, _, end, name in places if end > sizes[at])
    places.sort()
    for (at, _, end, name), (following, start, _, other) in pairwise(places):
        if at == following and start < end:
            yield f"{name} and {other} share bytes of {at}"


def _needed_bytes(tensor: onnx.TensorProto) -> int:
    elements = math.prod(tensor.dims)
    packed = _PACKED.get(tensor.data_type)
    if packed is not None:
        return -(-elements // packed)
    return elements * np.dtype(tensor_dtype_to_np_dtype(tensor.data_type)).itemsize


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
