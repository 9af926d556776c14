"""Where a provider's kernels want their inputs and leave their outputs, asked of real sessions with one node each.

Used only to make the tables beside this file. Needs an onnxruntime-gpu whose CUDA provider loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

IR_VERSION = 10
LIKED = ("float", "float16", "int64", "int32", "uint8", "bool")
"""Types to probe with, the most likely to be allowed first."""

GRU = {"hidden_size": 4, "linear_before_reset": 1}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Cast": {"to": TensorProto.FLOAT},
    "Einsum": {"equation": "i,i->i"},
    "GRU": GRU,
    "LSTM": {"hidden_size": 4},
    "RNN": {"hidden_size": 4},
    "ImageScaler": {"scale": 1.0, "bias": [0.0]},
    "ParametricSoftplus": {"alpha": 1.0, "beta": 1.0},
    "ScaledTanh": {"alpha": 1.0, "beta": 1.0},
    "FusedConv": {"activation": "Relu"},
    "NGramHashMapping": {"max_ngram_size": 2},
    "VarlenNGramHashMapping": {"max_ngram_size": 2},
    "SparseAttention": {"num_heads": 2, "kv_num_heads": 2, "sparse_block_size": 64},
}
"""What a kernel can't be built without, where 1 or "x" in every required attribute does not do."""

INT, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
BODIES: dict[str, dict[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "If": {"then_branch": ((), (FLOAT,)), "else_branch": ((), (FLOAT,))},
    "Loop": {"body": ((INT, BOOL, FLOAT), (BOOL, FLOAT))},
    "Scan": {"body": ((FLOAT,), (FLOAT,))},
}
"""Op -> attribute -> element types of the body's inputs and outputs."""
ATTRIBUTES["Scan"] = {"num_scan_inputs": 1}


def probe(schema: Any, kernel: Mapping[str, Any], providers: Sequence[str]) -> tuple[list[int], list[int]] | None:
    """(inputs, outputs) that live on the host, or None where no session could be made with the kernel."""
    for inputs in dict.fromkeys((len(schema.inputs), schema.min_input)):
        for outputs in dict.fromkeys((len(schema.outputs), schema.min_output or 1)):
            model = _model(schema, kernel, inputs, outputs)
            found = None if model is None else _asked(model, schema.name, providers)
            if found is not None:
                return found
    return None


def session(model: onnx.ModelProto, providers: Sequence[str]) -> ort.InferenceSession:
    """A session that records which provider took which node, and changes nothing else."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return ort.InferenceSession(model.SerializeToString(), options, providers=list(providers))


def placed(made: ort.InferenceSession) -> list[tuple[str, str]]:
    """(provider, op type) of every node."""
    return [
        (part.ep_name, node.op_type) for part in made.get_provider_graph_assignment_info() for node in part.get_nodes()
    ]


def one_node(schema: Any, inputs: Iterable[tuple[str, int]], outputs: Iterable[tuple[str, int]]) -> onnx.ModelProto:
    """A model of one node; (name, element type) of inputs and outputs, an empty name for one left out."""
    inputs, outputs = list(inputs), list(outputs)
    attributes = {a.name: _required(str(a.type)) for a in schema.attributes.values() if a.required}
    attributes |= ATTRIBUTES.get(schema.name, {})
    for name, types in BODIES.get(schema.name, {}).items():
        attributes[name] = _body(name, *types)
    node = helper.make_node(
        schema.name, [n for n, _ in inputs], [n for n, _ in outputs], domain=schema.domain, name="probe", **attributes
    )
    graph = helper.make_graph(
        [node],
        "probe",
        [helper.make_tensor_value_info(name, type_, None) for name, type_ in inputs if name],
        [helper.make_tensor_value_info(name, type_, None) for name, type_ in outputs if name],
    )
    opsets = {"": 21} | {schema.domain: schema.since_version}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def _model(schema: Any, kernel: Mapping[str, Any], num_inputs: int, num_outputs: int) -> onnx.ModelProto | None:
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    sides: list[list[tuple[str, int]]] = []
    for letter, formals, count in (("x", schema.inputs, num_inputs), ("y", schema.outputs, num_outputs)):
        side: list[tuple[str, int]] = []
        for i, formal in enumerate(formals[:count]):
            type_ = _element_type(formal, kernel["types"], allowed)
            if type_ is None and "Optional" not in str(formal.option):
                return None
            side.append(("", 0) if type_ is None else (f"{letter}{i}", type_))
        sides.append(side)
    try:
        return one_node(schema, *sides)
    except (ValueError, TypeError):
        return None


def _asked(model: onnx.ModelProto, op: str, providers: Sequence[str]) -> tuple[list[int], list[int]] | None:
    try:
        made = session(model, providers)
    except Exception:  # onnxruntime raises a family of its own; a kernel that can't be built tells nothing.
        return None
    if placed(made) != [(providers[0], op)]:
        return None
    inputs = zip(made.get_inputs(), made.get_input_memory_infos(), strict=True)
    outputs = zip(made.get_outputs(), made.get_output_memory_infos(), strict=True)
    host_inputs, host_outputs = (
        sorted(int(value.name[1:]) for value, memory in side if memory.name == "Cpu") for side in (inputs, outputs)
    )
    return host_inputs, host_outputs


def _element_type(formal: Any, kernel: Mapping[str, Sequence[str]], allowed: Mapping[str, Sequence[str]]) -> int | None:
    types = kernel.get(formal.typeStr) or kernel.get(formal.name) or allowed.get(formal.typeStr) or [formal.typeStr]
    names = [t.removeprefix("tensor(").removesuffix(")") for t in types if t.startswith("tensor(")]
    liked = [name for name in LIKED if name in names] or names
    return TensorProto.DataType.Value(liked[0].upper()) if liked else None


def _required(kind: str) -> Any:
    return {"INT": 1, "FLOAT": 1.0, "STRING": "x", "INTS": [1, 1], "FLOATS": [1.0]}.get(kind.rpartition(".")[2], 1)


def _body(name: str, inputs: Sequence[int], outputs: Sequence[int]) -> onnx.GraphProto:
    shapes: dict[int, list[int]] = {INT: [], BOOL: [], FLOAT: [1]}
    nodes = [
        helper.make_node("Constant", [], [f"{name} y{i}"], value=helper.make_tensor("", type_, shapes[type_], [0]))
        for i, type_ in enumerate(outputs)
    ]
    x, y = (
        [helper.make_tensor_value_info(f"{name} {letter}{i}", type_, shapes[type_]) for i, type_ in enumerate(types)]
        for letter, types in (("x", inputs), ("y", outputs))
    )
    return helper.make_graph(nodes, name, x, y)
