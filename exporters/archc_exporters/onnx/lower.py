"""A graph becomes an ONNX model: every node goes through the lowering that is registered under its op's name."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from typing import Any

import onnx_ir as ir

from archc import registry
from archc._version import __version__
from archc.errors import GraphError
from archc.graph.graph import Graph, join
from archc.ir.values import Body, Call, Node, Value
from archc_exporters.onnx.cache_dtype import check_caches
from archc_exporters.onnx.context import OPSETS, Lowering, further_inputs
from archc_exporters.onnx.genai.inputs import lengths
from archc_exporters.onnx.limits import takes_batched_chunks
from archc_exporters.onnx.step import last_token, positions
from archc_exporters.onnx.target import Target
from archc_exporters.onnx.tidy import tidy
from archc_exporters.onnx.weights import WeightSource

IR_VERSION = 10
"""With opset 24, what every onnxruntime from 1.24 on reads."""


def lower_graph(
    graph: Graph, *, target: Target, weights: WeightSource, max_model_len: int
) -> tuple[ir.Model, Lowering]:
    """The model, its weights still unread, and the lowering that made it.

    Raises:
        ArchcError: a cache has a dtype that its layer can't have.
        GraphError: an op has no lowering, or can't be said in ONNX.
    """
    check_caches(graph, target)
    ctx = Lowering(
        graph,
        target=target,
        weights=weights,
        table_rows=graph.capacity(max_model_len),
    )
    given = list(ctx.inputs.values())
    if target.io == "genai":
        ctx.inputs |= lengths(ctx)
    values: dict[Value, ir.Value] = {
        graph.inputs[name]: ctx.inputs[name] for name in ("input_ids", *further_inputs(graph))
    }
    at = graph.inputs["positions"]
    if any(at in item.inputs for item in graph.root.items):
        values[at] = positions(ctx)
    _lower_body(ctx, graph.root, "", values, tail=_tail(graph) if target.prune_head else set())
    outputs: list[ir.Value] = []
    for name, value in graph.outputs.items():
        output = ctx.cast(values[value], ctx.dtype)
        output.name = name
        width = value.width if name != "logits" or graph.vocab_size is None else min(value.width, graph.vocab_size)
        output.shape = ir.Shape(["batch", 1 if target.prune_head else "seq", width])
        outputs.append(output)
    model = ir.Model(
        ir.Graph(
            [*given, *ctx.pasts.values()],
            [*outputs, *(ctx.presents[name] for name in ctx.pasts)],
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
            "max_model_len": max_model_len,
            "reserved_rows": graph.reserved_rows(),
            "batched_chunks": takes_batched_chunks(model),
        }
    )
    return model, ctx


def _tail(graph: Graph) -> set[Value]:
    """What the last layer gives to the final norm and the head."""
    layers = [item for item in graph.root.items if isinstance(item, Call) and item.name.startswith("layers.")]
    return set(layers[-1].outputs) if layers else set()


def _lower_body(
    ctx: Lowering,
    body: Body,
    scope: str,
    values: dict[Value, ir.Value],
    tail: AbstractSet[Value] = frozenset(),
) -> None:
    """Lower the items of a body in order; ``values`` holds its inputs and gains everything that it makes.

    Of what is in ``tail`` the rest reads the last valid token only.
    """
    for item in body.items:
        inputs = [values[value] for value in item.inputs]
        if isinstance(item, Node):
            outputs = ctx.lower(scope, item, inputs, _lowering_of(scope, item))
        else:
            inner = dict(zip(item.body.inputs, inputs, strict=True))
            _lower_body(ctx, item.body, join(scope, item.name), inner)
            outputs = [inner[value] for value in item.body.outputs]
        values.update(zip(item.outputs, outputs, strict=True))
        for value in tail & set(item.outputs):
            ctx.path = "last_token"
            values[value] = last_token(ctx, values[value])


def _lowering_of(scope: str, node: Node) -> Any:
    function = registry.find("onnx", node.op.op_name)
    if function is None:
        raise GraphError(
            f"{join(scope, node.name) or 'model'}: the op {node.op.op_name} has no lowering to ONNX; register one in the "
            f"entry-point group archc.onnx (installed: {', '.join(registry.names('onnx'))})"
        )
    return function
