"""Element types of a model's values: what the file states, and what schemas say of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto

from archc_exporters.onnx.placement.schemas import Formal, Schema, find_schema, formal_of

DTYPE_ATTRIBUTES = ("to", "dtype")
"""Attributes that are the type of what a node makes."""


def attributes(node: onnx.NodeProto) -> dict[str, AttributeProto]:
    """Name -> attribute."""
    return {attribute.name: attribute for attribute in node.attribute}


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs inside a node: branches of If, bodies of Loop and Scan."""
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph itself and every graph inside its nodes."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from all_graphs(body)


def opsets(model: onnx.ModelProto) -> dict[str, int]:
    """Domain -> version; the standard domain is the empty name."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}


def schema_of(node: onnx.NodeProto, versions: Mapping[str, int]) -> Schema | None:
    """The schema of a node under the model's opsets."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return find_schema(domain, node.op_type, versions.get(domain, 1))


def constant(node: onnx.NodeProto) -> onnx.TensorProto:
    """The tensor of a Constant node."""
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            return value
        if attribute.name in ("value_int", "value_ints", "value_float", "value_floats"):
            type_ = TensorProto.INT64 if "int" in attribute.name else TensorProto.FLOAT
            values = list(value) if attribute.name.endswith("s") else [value]
            dims = [len(values)] if attribute.name.endswith("s") else []
            return onnx.helper.make_tensor(node.output[0], type_, dims, values)
    return TensorProto()


def element_types(model: onnx.ModelProto) -> dict[str, str]:
    """Value -> element type (``float16``), wherever it can be known."""
    types: dict[str, str] = {}
    for graph in all_graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if declared := declared_type(value.type):
                types[value.name] = declared
        types.update({tensor.name: type_name(tensor.data_type) for tensor in graph.initializer})
    _follow(model.graph, types, opsets(model))
    return types


def declared_type(type_: onnx.TypeProto) -> str:
    """``float16`` of a tensor, ``seq(tensor(float16))`` of a sequence of them; empty where nothing is declared."""
    match type_.WhichOneof("value"):
        case "tensor_type" if type_.tensor_type.elem_type:
            return type_name(type_.tensor_type.elem_type)
        case "sequence_type":
            return f"seq({_in_brackets(type_.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_in_brackets(type_.optional_type.elem_type)})"
        case _:
            return ""


def _in_brackets(type_: onnx.TypeProto) -> str:
    inner = declared_type(type_)
    return inner if "(" in inner else f"tensor({inner})"


def type_name(number: int) -> str:
    """``float16`` for TensorProto.FLOAT16."""
    return TensorProto.DataType.Name(number).lower()


def types_of_formals(node: onnx.NodeProto, schema: Schema, types: Mapping[str, str]) -> dict[str, str | None]:
    """Type variable or formal name -> type of the first of the node's arguments that has it; None where that is not known."""
    found: dict[str, str | None] = {}
    for formal, value in _arguments(node, schema):
        for key in (formal.type, formal.name):
            if found.get(key) is None:
                found[key] = types.get(value)
    return found


def _arguments(node: onnx.NodeProto, schema: Schema) -> Iterator[tuple[Formal, str]]:
    for formals, values in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for number, value in enumerate(values):
            formal = formal_of(formals, number)
            if formal is not None and value:
                yield formal, value


def _follow(graph: onnx.GraphProto, types: dict[str, str], versions: Mapping[str, int]) -> None:
    for node in graph.node:
        inner = bodies(node)
        for body in inner:
            _follow(body, types, versions)
        for value, type_ in zip(node.output, _made(node, inner, types, versions), strict=False):
            if value and type_ is not None:
                types.setdefault(value, type_)


def _made(
    node: onnx.NodeProto, inner: list[onnx.GraphProto], types: Mapping[str, str], versions: Mapping[str, int]
) -> Iterable[str | None]:
    if inner:
        # A Loop's body gives its condition first.
        skipped = 1 if node.op_type == "Loop" else 0
        return [types.get(value.name) for value in inner[0].output[skipped:]]
    stated = _stated(node)
    if stated is not None:
        return [stated]
    schema = schema_of(node, versions)
    if schema is None:
        return []
    variables = types_of_formals(node, schema, types)
    outputs: list[str | None] = []
    for number in range(len(node.output)):
        formal = formal_of(schema.outputs, number)
        known = None if formal is None else variables.get(formal.type)
        outputs.append(known or (formal.type if formal and formal.type in _TYPES else None))
    return outputs


def _stated(node: onnx.NodeProto) -> str | None:
    """The type that a node's attributes say its output has."""
    given: dict[str, Any] = attributes(node)
    if node.op_type in ("Constant", "ConstantOfShape"):
        if "value" in given:
            return type_name(given["value"].t.data_type)
        if "value_int" in given or "value_ints" in given:
            return "int64"
        return "string" if "value_string" in given or "value_strings" in given else "float"
    for name in DTYPE_ATTRIBUTES:
        if name in given and given[name].type == AttributeProto.INT:
            made = type_name(given[name].i)
            return f"seq(tensor({made}))" if node.op_type == "SequenceEmpty" else made
    return None


_TYPES = frozenset(name.lower() for name in dict(TensorProto.DataType.items()))
