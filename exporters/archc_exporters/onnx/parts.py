"""The files of an export: one, or two where a decoder reads an encoder, and what each is given.

``encoder.onnx`` makes the keys and values that a decoder's cross attention keeps, so that the decoder never sees what the
encoder gives; ``model.onnx`` is what is called again and again. What is computed from an encoder's tokens alone belongs to
the first, wherever it stands in the graph.
"""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

from archc.graph.graph import Graph
from archc.ir.size import Dim, Size
from archc.ops.position import TokenIndex
from archc_exporters.onnx.states import ENCODER, ENCODER_FILE, ENCODER_MASK, GENAI_INPUTS, LENGTHS
from archc_exporters.onnx.target import Target

Part = Literal["model", "encoder"]
FILES: dict[Part, str] = {"encoder": ENCODER_FILE, "model": "model.onnx"}
_NAMES = {"memory": "source"}
"""Tokens of an encoder are called alike where it reads them and where they are kept."""


def parts(graph: Graph) -> tuple[Part, ...]:
    """The files that a graph becomes, in the order in which they run."""
    return ("encoder", "model") if any(name.startswith(ENCODER) for name in graph.inputs) else ("model",)


def is_whole(graph: Graph, part: Part) -> bool:
    """Whether a part sees all of its tokens in one call and keeps nothing between calls."""
    return part == "encoder" or graph.mask == "bidirectional"


def is_position(name: str) -> bool:
    """Whether an input of a graph holds positions, which a file computes itself."""
    return name == "positions" or name.endswith("_positions")


def fixed_tokens(graph: Graph) -> int | None:
    """Tokens that a graph always has, those of pictures of one size; None where a call says how many there are."""
    index = next((node for node in graph.root.nodes() if isinstance(node.op, TokenIndex)), None)
    count = None if index is None or any(map(is_position, graph.inputs)) else index.outputs[0].shape[1]
    return count if isinstance(count, int) else None


def graph_inputs(graph: Graph, part: Part) -> tuple[str, ...]:
    """The inputs of a graph that a part is given, positions left out."""
    names = [name for name in graph.inputs if not is_position(name)]
    if part == "encoder":
        return tuple(name for name in names if name.startswith(ENCODER))
    return tuple(name for name in names if not name.startswith(ENCODER) or name == ENCODER_MASK)


def file_inputs(graph: Graph, target: Target, part: Part) -> dict[str, ir.Value]:
    """name -> the input of a file, caches left out: ids and lengths in int64, images in float32 whatever the model's dtype."""
    given: dict[str, tuple[ir.DataType, tuple[int | str, ...]]] = {}
    if not is_whole(graph, part):
        lengths = GENAI_INPUTS if target.io == "genai" else LENGTHS
        given = {name: (ir.DataType.INT64, shape) for name, shape in lengths.items()}
    for name in graph_inputs(graph, part):
        value = graph.inputs[name]
        kind = ir.DataType.INT64 if value.dtype == "int64" else ir.DataType.FLOAT
        given.setdefault(name, (kind, dimensions(value.shape)))
    return {
        name: ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(list(shape)))
        for name, (kind, shape) in given.items()
    }


def dimensions(shape: tuple[Dim, ...]) -> tuple[int | str, ...]:
    """Sizes of a file's input or output, numbers and names."""
    return tuple(_NAMES.get(str(dim), str(dim)) if isinstance(dim, Size) else dim for dim in shape)
