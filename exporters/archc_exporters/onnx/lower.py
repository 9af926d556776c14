"""A graph becomes an ONNX model: every node goes through the lowering that is registered under its op's name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from archc import registry
from archc._version import __version__
from archc.errors import ArchcError, GraphError
from archc.graph.graph import LAYER, Graph, join
from archc.ir.values import Body, Call, Node, Value
from archc.ops.linear import Embedding, Linear
from archc_exporters.onnx.cache_dtype import check_caches
from archc_exporters.onnx.context import OPSETS, Lowering
from archc_exporters.onnx.genai.inputs import lengths
from archc_exporters.onnx.limits import takes_batched_chunks
from archc_exporters.onnx.parts import FILES, Part, dimensions, graph_inputs, is_position, is_whole, parts
from archc_exporters.onnx.states import ENCODER
from archc_exporters.onnx.step import last_token, positions
from archc_exporters.onnx.target import Target
from archc_exporters.onnx.tidy import tidy
from archc_exporters.onnx.weights import WeightSource

IR_VERSION = 10
"""With opset 24, what every onnxruntime from 1.24 on reads."""


def lower_parts(
    graph: Graph, *, target: Target, weights: WeightSource, max_model_len: int
) -> dict[str, tuple[ir.Model, Lowering]]:
    """``lower_graph`` of every part, by the names of their files; the model is the last.

    Raises:
        ArchcError, GraphError: as ``lower_graph``.
    """
    return {
        FILES[part]: lower_graph(graph, target=target, weights=weights, max_model_len=max_model_len, part=part)
        for part in parts(graph)
    }


Values = dict[Value, ir.Value | None]
"""What each value of a body became; those that belong to another part of the graph are absent, or None."""


def lower_graph(
    graph: Graph, *, target: Target, weights: WeightSource, max_model_len: int, part: Part = "model"
) -> tuple[ir.Model, Lowering]:
    """The model of one part of the graph, its weights still unread, and the lowering that made it.

    Raises:
        ArchcError: a cache has a dtype that its layer can't have, or the target asks for what the graph has not.
        GraphError: an op has no lowering, or can't be said in ONNX.
    """
    check_caches(graph, target)
    if target.prune_head and is_whole(graph, "model"):
        raise ArchcError(f"{graph.name} gives what all of its tokens say, so no head can be pruned to the last one")
    if part == "encoder":
        target = _with_the_decoders_table(graph, target)
    ctx = Lowering(
        graph,
        target=target,
        weights=weights,
        table_rows=graph.capacity(max_model_len),
        part=part,
    )
    given = list(ctx.inputs.values())
    if target.io == "genai":
        ctx.inputs |= lengths(ctx)
    values: Values = {
        # Images are float32 in every file.
        graph.inputs[name]: ctx.cast(ctx.inputs[name], ctx.resolve(graph.inputs[name].dtype))
        for name in graph_inputs(graph, part)
    }
    for name, at in graph.inputs.items():
        of_part = name.startswith(ENCODER) == (part == "encoder")
        if is_position(name) and of_part and any(at in item.inputs for item in graph.root.items):
            values[at] = positions(ctx)
    _lower_body(ctx, graph.root, "", values, tail=_tail(graph) if target.prune_head else set())
    outputs: list[ir.Value] = []
    for name, value in graph.outputs.items() if part == "model" else ():
        outputs.append(_output(ctx, name, value, values, [*given, *ctx.presents.values(), *outputs]))
    order = ctx.presents if part == "encoder" else [name for name in ctx.pasts if name in ctx.presents]
    model = ir.Model(
        ir.Graph(
            [*given, *ctx.pasts.values()],
            [*outputs, *(ctx.presents[name] for name in order)],
            nodes=ctx.nodes,
            initializers=list(ctx.initializers.values()),
            opset_imports=dict(OPSETS),
            name=graph.name,
        ),
        ir_version=IR_VERSION,
        producer_name="archc",
        producer_version=__version__,
    )
    tidy(ctx, model)
    model.metadata_props["archc"] = json.dumps(
        {
            "name": graph.name,
            "part": part,
            "mask": graph.mask,
            "max_model_len": max_model_len,
            "reserved_rows": graph.reserved_rows(),
            "batched_chunks": takes_batched_chunks(model),
        }
    )
    return model, ctx


def _with_the_decoders_table(graph: Graph, target: Target) -> Target:
    """Where the decoder's head reads the encoder's table as integers, the encoder does too, so that it lies in the data once."""
    quant = target.quant
    if quant is None or quant.embedding is not None or not quant.head:
        return target
    tables = {node.params["weight"] for node in graph.root.nodes() if isinstance(node.op, Embedding)}
    tied = (node for node in graph.root.nodes() if isinstance(node.op, Linear) and node.op.tied)
    if not any(node.params["weight"] in tables for node in tied):
        return target
    return replace(target, quant=replace(quant, embedding=True))


def _output(ctx: Lowering, name: str, value: Value, values: Values, taken: Sequence[ir.Value]) -> ir.Value:
    """An output of the file: the value under its name, in the model's dtype; what has a name already is ``taken``."""
    found = values[value]
    assert found is not None, f"{name} is made of what another part of the graph computes"
    if any(found is other for other in taken):
        found = ctx.op("Identity", found)
    found = ctx.cast(found, ctx.dtype)
    found.name = name
    shape = list(dimensions(value.shape))
    if ctx.graph.vocab_size is not None and value.axis == "vocab":
        shape[-1] = min(value.width, ctx.graph.vocab_size)
    if ctx.target.prune_head and len(shape) > 2:
        shape[1] = 1
    found.shape = ir.Shape(shape)
    return found


def _tail(graph: Graph) -> set[Value]:
    """What the last layer gives to the final norm and the head."""
    layers = [item for item in graph.root.items if isinstance(item, Call) and LAYER.match(item.name)]
    return set(layers[-1].outputs) if layers else set()


def _lower_body(
    ctx: Lowering,
    body: Body,
    scope: str,
    values: Values,
    tail: AbstractSet[Value] = frozenset(),
) -> None:
    """Lower the items of a body in order; ``values`` holds its inputs and gains everything that it makes.

    Of what is in ``tail`` the rest reads the last valid token only. What lacks an input belongs to another part of the graph
    and is left out; only what keeps an encoder's rows stands in both, and is given None for what it lacks.
    """
    for item in body.items:
        inputs = [values.get(value) for value in item.inputs]
        outputs: Sequence[ir.Value | None]
        if isinstance(item, Call):
            inner: Values = dict(zip(item.body.inputs, inputs, strict=True))
            _lower_body(ctx, item.body, join(scope, item.name), inner)
            outputs = [inner.get(value) for value in item.body.outputs]
        elif None not in inputs or any(state.growth == "source" for state in item.states.values()):
            outputs = ctx.lower(scope, item, inputs, _lowering_of(scope, item))
        else:
            outputs = [None] * len(item.outputs)
        values.update(zip(item.outputs, outputs, strict=True))
        for value in tail & set(item.outputs):
            last = values[value]
            if last is not None:
                ctx.path = "last_token"
                values[value] = last_token(ctx, last)


def _lowering_of(scope: str, node: Node) -> Any:
    function = registry.find("onnx", node.op.op_name)
    if function is None:
        raise GraphError(
            f"{join(scope, node.name) or 'model'}: the op {node.op.op_name} has no lowering to ONNX; register one in the "
            f"entry-point group archc.onnx (installed: {', '.join(registry.names('onnx'))})"
        )
    return function
