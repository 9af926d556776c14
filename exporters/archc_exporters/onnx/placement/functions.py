"""Functions of ops: the nodes that onnxruntime puts in place of one that no provider has a kernel for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from archc_exporters.onnx.placement.element_types import attributes
from archc_exporters.onnx.placement.schemas import CONTRIB, Schema


def body_model(node: onnx.NodeProto, schema: Schema, types: Mapping[str, str], opset: int) -> onnx.ModelProto | None:
    """The function of a node as a model of its own, with the node's types; None where it can't be said."""
    function = _of_contrib(node, schema) if schema.domain == CONTRIB else _of_onnx(node, schema, types)
    if function is None:
        return None
    for inner in function.node:
        _fill_in(inner, attributes(node))
    inputs = [
        helper.make_value_info(formal, _type_proto(types[actual]))
        for formal, actual in zip(function.input, node.input, strict=False)
        if actual and actual in types
    ]
    graph = helper.make_graph(
        function.node, node.op_type, inputs, [onnx.ValueInfoProto(name=n) for n in function.output]
    )
    imports = function.opset_import or [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports)


def _of_onnx(node: onnx.NodeProto, schema: Schema, types: Mapping[str, str]) -> onnx.FunctionProto | None:
    # Any: onnx's own stubs leave these methods out.
    found: Any = onnx.defs.get_schema(schema.op, schema.since, schema.domain)
    if found.has_function:
        return found.function_body
    protos = [_type_proto(types.get(name, "float")) for name in node.input]
    try:
        text = found.get_context_dependent_function(
            node.SerializeToString(), [proto.SerializeToString() for proto in protos]
        )
    except (ValueError, RuntimeError):  # The function is made for other types than the node's, or they are not known.
        return None
    return onnx.FunctionProto.FromString(text) if text else None


def _type_proto(kind: str) -> onnx.TypeProto:
    """The type that ``declared_type`` puts in words."""
    outer, _, inner = kind.partition("(")
    if outer == "seq":
        return helper.make_sequence_type_proto(_type_proto(inner[:-1]))
    if outer == "optional":
        return helper.make_optional_type_proto(_type_proto(inner[:-1]))
    name = inner[:-1] if outer == "tensor" else kind
    return helper.make_tensor_type_proto(TensorProto.DataType.Value(name.upper()), None)


def _of_contrib(node: onnx.NodeProto, schema: Schema) -> onnx.FunctionProto | None:
    """A chain of the op types that the table names: their types are the node's, which is all that is asked of it."""
    if not node.input or not schema.body:
        return None
    names = ["x", *(f"t{i}" for i in range(len(schema.body)))]
    binary = ("Add", "Mul", "Div", "Sub", "Pow")
    nodes = [
        helper.make_node(op, [names[i], *([names[i]] if op in binary else [])], [names[i + 1]])
        for i, op in enumerate(schema.body)
    ]
    return helper.make_function(schema.domain, schema.op, ["x"], [names[-1]], nodes, [])


def _fill_in(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> None:
    """References to the node's attributes become their values; a reference to one that is left out goes."""
    filled: Sequence[onnx.AttributeProto] = [
        _named(given[attribute.ref_attr_name], attribute.name) if attribute.ref_attr_name else attribute
        for attribute in node.attribute
        if not attribute.ref_attr_name or attribute.ref_attr_name in given
    ]
    copies = [onnx.AttributeProto.FromString(attribute.SerializeToString()) for attribute in filled]
    del node.attribute[:]
    node.attribute.extend(copies)


def _named(attribute: onnx.AttributeProto, name: str) -> onnx.AttributeProto:
    copy = onnx.AttributeProto.FromString(attribute.SerializeToString())
    copy.name = name
    return copy
