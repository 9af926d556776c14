"""Shapes of a model's values, as far as limits of ops ask for them. Nothing is computed that nobody asks for.

A dimension is a number, a name or a sum of both (``16 + seq``), or None where it can't be said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import numpy_helper

from archc_exporters.onnx.placement.element_types import all_graphs, attributes, bodies, constant

Dim = int | str | None
Shape = list[Dim]

# fmt: off
_OF_FIRST_INPUT = frozenset((
    "Abs", "Cast", "CausalConvWithState", "Clip", "Cos", "CumSum", "Elu", "Erf", "Exp", "FastGelu", "GatedRMSNorm",
    "Gelu", "Identity", "LayerNormalization", "LinearAttentionGate", "Log", "LogSoftmax", "Neg", "Not", "QuickGelu",
    "RMSNormalization", "Reciprocal", "Relu", "RotaryEmbedding", "ScatterElements", "ScatterND", "Sigmoid",
    "SimplifiedLayerNormalization", "Sin", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Softmax",
    "Softplus", "Sqrt", "Tanh", "TensorScatter", "Trilu",
))
_BROADCAST = frozenset((
    "Add", "And", "BiasGelu", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod",
    "Mul", "Or", "Pow", "Sub", "Where", "Xor",
))
# fmt: on
_SMALL = 64
"""Elements of an integer constant that may be a shape."""


class Shapes:
    """The shapes of one model, found from the end that asks."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._known: dict[str, Shape | None] = {}
        self._makers: dict[str, tuple[onnx.NodeProto, int]] = {}
        self._constants: dict[str, list[int]] = {}
        for graph in all_graphs(model.graph):
            for value in (*graph.input, *graph.output, *graph.value_info):
                if value.type.tensor_type.HasField("shape"):
                    dims = value.type.tensor_type.shape.dim
                    self._known[value.name] = [
                        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims
                    ]
            for tensor in graph.initializer:
                self._hold(tensor.name, tensor)
            for node in graph.node:
                if node.op_type == "Constant":
                    self._hold(node.output[0], constant(node))
                self._makers.update({name: (node, number) for number, name in enumerate(node.output) if name})

    def of(self, name: str) -> Shape | None:
        """The shape of a value; None where not even its rank can be said."""
        if name not in self._known:
            self._known[name] = None  # Ends the search in a file that is no acyclic graph.
            maker = self._makers.get(name)
            self._known[name] = None if maker is None else self._made(*maker)
        return self._known[name]

    def last(self, name: str) -> Dim:
        """The last dimension of a value."""
        shape = self.of(name)
        return shape[-1] if shape else None

    def integers(self, name: str) -> Shape | None:
        """The elements of a small integer value that is a constant, or computed from shapes."""
        if name in self._constants:
            return list(self._constants[name])
        node, _ = self._makers.get(name, (None, 0))
        if node is None:
            return None
        match node.op_type:
            case "Shape":
                shape, given = self.of(node.input[0]), attributes(node)
                start, end = (given[key].i if key in given else None for key in ("start", "end"))
                return None if shape is None else shape[start:end]
            case "Squeeze" | "Unsqueeze" | "Cast" | "Identity" | "Reshape":
                return self.integers(node.input[0])
            case "Concat":
                parts = [self.integers(part) for part in node.input]
                return None if None in parts else [dim for part in parts for dim in part or []]
            case "Add" | "Sub" if len(self.integers(node.input[0]) or ()) == 1:
                left, right = (self.integers(part) for part in node.input)
                number = right[0] if right and len(right) == 1 else None
                if left is None or not isinstance(number, int):
                    return None
                return [plus(left[0], number if node.op_type == "Add" else -number)]
            case _:
                return None

    def _hold(self, name: str, tensor: onnx.TensorProto) -> None:
        self._known.setdefault(name, list(tensor.dims))
        is_inline = not tensor.external_data and tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
        if is_inline and len(tensor.dims) <= 1 and sum(tensor.dims) <= _SMALL:
            self._constants[name] = numpy_helper.to_array(tensor).reshape(-1).tolist()

    def _made(self, node: onnx.NodeProto, number: int) -> Shape | None:
        if node.op_type in _OF_FIRST_INPUT:
            return self.of(node.input[0]) if number in (0, 3) else None
        if node.op_type in _BROADCAST:
            return _broadcast([self.of(name) for name in node.input if name])
        rule = _RULES.get(node.op_type)
        return None if rule is None else rule(self, node, number)

    def reshape(self, node: onnx.NodeProto, _: int) -> Shape | None:
        wanted, source = self.integers(node.input[1]), self.of(node.input[0])
        if wanted is None:
            return None
        kept: Shape = [source[i] if source and i < len(source) else None for i in range(len(wanted))]
        return [kept[i] if dim == 0 else None if dim == -1 else dim for i, dim in enumerate(wanted)]

    def transpose(self, node: onnx.NodeProto, _: int) -> Shape | None:
        source, given = self.of(node.input[0]), attributes(node)
        if source is None:
            return None
        return [source[i] for i in given["perm"].ints] if "perm" in given else source[::-1]

    def concat(self, node: onnx.NodeProto, _: int) -> Shape | None:
        shapes = [self.of(name) for name in node.input]
        first = shapes[0]
        if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
            return None
        axis = attributes(node)["axis"].i % len(first)
        total: Dim = 0
        for shape in shapes:
            total = plus(total, shape[axis] if shape else None)
        return [*first[:axis], total, *first[axis + 1 :]]

    def split(self, node: onnx.NodeProto, number: int) -> Shape | None:
        source, given = self.of(node.input[0]), attributes(node)
        if source is None:
            return None
        axis = (given["axis"].i if "axis" in given else 0) % len(source)
        sizes = self.integers(node.input[1]) if len(node.input) > 1 and node.input[1] else None
        size = source[axis]
        even = size // len(node.output) if isinstance(size, int) else None
        return [*source[:axis], sizes[number] if sizes else even, *source[axis + 1 :]]

    def slice(self, node: onnx.NodeProto, _: int) -> Shape | None:
        source = self.of(node.input[0])
        if source is None:
            return None
        starts, ends, axes = (self.integers(name) for name in (*node.input[1:4], *([""] * (4 - len(node.input)))))
        result = list(source)
        if axes is None or starts is None:
            return [*(None for _ in source)]
        for i, axis in enumerate(axes):
            assert isinstance(axis, int)
            result[axis] = _cut(source[axis], starts[i], ends[i] if ends else None)
        return result

    def unsqueeze(self, node: onnx.NodeProto, _: int) -> Shape | None:
        source, axes = self.of(node.input[0]), self.integers(node.input[1])
        if source is None or axes is None:
            return None
        rank = len(source) + len(axes)
        new = {axis % rank for axis in axes if isinstance(axis, int)}
        rest = iter(source)
        return [1 if i in new else next(rest) for i in range(rank)]

    def squeeze(self, node: onnx.NodeProto, _: int) -> Shape | None:
        source = self.of(node.input[0])
        axes = self.integers(node.input[1]) if len(node.input) > 1 else None
        if source is None or axes is None:
            return None
        gone = {axis % len(source) for axis in axes if isinstance(axis, int)}
        return [dim for i, dim in enumerate(source) if i not in gone]

    def matmul(self, node: onnx.NodeProto, _: int) -> Shape | None:
        left, right = (self.of(name) for name in node.input[:2])
        if left is None or right is None or min(len(left), len(right)) < 2:
            return None
        turned = "transB" in (given := attributes(node)) and given["transB"].i
        outer = _broadcast([left[:-2], right[:-2]]) or []
        return [*outer, left[-2], right[-2] if turned else right[-1]]

    def gather(self, node: onnx.NodeProto, _: int) -> Shape | None:
        source, index, given = self.of(node.input[0]), self.of(node.input[1]), attributes(node)
        if source is None or index is None:
            return None
        axis = (given["axis"].i if "axis" in given else 0) % len(source)
        return [*source[:axis], *index, *source[axis + 1 :]]

    def expand(self, node: onnx.NodeProto, _: int) -> Shape | None:
        wanted = self.integers(node.input[1])
        return None if wanted is None else _broadcast([self.of(node.input[0]), wanted])

    def filled(self, node: onnx.NodeProto, _: int) -> Shape | None:
        return self.integers(node.input[0])

    def range_(self, node: onnx.NodeProto, _: int) -> Shape | None:
        start, limit, step = (self.integers(name) for name in node.input)
        count: Dim = limit[0] if (start, step) == ([0], [1]) and limit else None
        return [count]

    def branch(self, node: onnx.NodeProto, number: int) -> Shape | None:
        return self.of(bodies(node)[0].output[number].name)


_RULES: dict[str, Callable[[Shapes, onnx.NodeProto, int], Shape | None]] = {
    "Reshape": Shapes.reshape,
    "Transpose": Shapes.transpose,
    "Concat": Shapes.concat,
    "Split": Shapes.split,
    "Slice": Shapes.slice,
    "Unsqueeze": Shapes.unsqueeze,
    "Squeeze": Shapes.squeeze,
    "MatMul": Shapes.matmul,
    "FusedMatMul": Shapes.matmul,
    "Gather": Shapes.gather,
    "Expand": Shapes.expand,
    "ConstantOfShape": Shapes.filled,
    "Range": Shapes.range_,
    "If": Shapes.branch,
}


def decode(dim: Dim) -> int | None:
    """The dimension when one token is decoded over caches whose capacity is a multiple of 8; None where that doesn't say it."""
    if dim is None:
        return None
    known = {"seq": 1, "sequence_length": 1, "capacity": 8}
    numbers = [known.get(part, int(part) if part.lstrip("-").isdigit() else None) for part in str(dim).split(" + ")]
    return None if None in numbers else sum(number or 0 for number in numbers)


def plus(left: Dim, right: Dim) -> Dim:
    """The sum of two dimensions: names first, in the order met, then one number."""
    if left is None or right is None:
        return None
    parts = [part.strip() for dim in (left, right) for part in str(dim).split(" + ")]
    number = sum(int(part) for part in parts if part.lstrip("-").isdigit())
    names = [part for part in parts if not part.lstrip("-").isdigit()]
    if not names:
        return number
    return " + ".join([*names, *([str(number)] if number else [])])


def _broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes):
        return None
    rank = max(map(len, known))
    result: Shape = []
    for i in range(rank):
        dims = [shape[i - rank] for shape in known if rank - i <= len(shape)]
        wide = [dim for dim in dims if dim != 1]
        # Dimensions that broadcast are equal, so one that can be said speaks for one that can't.
        result.append(next((dim for dim in wide if dim is not None), None) if wide else 1)
    return result


def _cut(dim: Dim, start: Dim, end: Dim) -> Dim:
    if not isinstance(start, int) or start < 0:
        return None
    if isinstance(end, int) and end < 0:
        return plus(dim, end - start)
    if isinstance(dim, int) and isinstance(end, int):
        return max(0, min(dim, end) - start)
    if isinstance(end, int) and end >= 1 << 31:
        return plus(dim, -start)
    return end if isinstance(end, int) and start == 0 and isinstance(dim, int) else None
