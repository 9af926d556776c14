"""Integer weights: a pass that turns products with a weight, experts and tables into the nodes that read blocks.

The file's numbers are made when it is written, one weight at a time, from what the float file would have held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from archc_exporters.onnx.context import KEEP_FLOAT, MS
from archc_exporters.onnx.stored import UINT8, Matrix, Stored, bytes_of, constant, initializer, store
from archc_exporters.onnx.target import BLOCK_SIZES, Provider, Quantization, Target

_INT8_ACTIVATIONS = 4
"""accuracy_level of the CPU's kernels: activations are rounded to int8, block by block."""
_AFTER_HEAD = ("Add", "Mul", "Div", "Tanh", "Cast", "Reshape", "Slice")
"""What may stand between the head's product and the logits."""


@dataclass(frozen=True, slots=True)
class _ExpertLimits:
    """QMoE of one version on one provider: hidden and inner size are multiples of ``tile``, blocks at least ``min_block``."""

    tile: int
    min_block: int


_EXPERTS: dict[tuple[tuple[int, int], Provider], _ExpertLimits] = {
    ((1, 31), "cpu"): _ExpertLimits(tile=1, min_block=16),
    ((1, 31), "cuda"): _ExpertLimits(tile=64, min_block=32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeights:
    """What became of a file's weights.

    Attributes:
        bits: of a weight.
        block_size: inputs that share a scale, where they divide by it; the largest power of two that does elsewhere.
        symmetric: no zero points are stored.
        int8_activations: the CPU's kernels round activations to int8 as well; CUDA's never do.
        nodes: op type -> how many nodes read blocks.
        kept: reason -> weights of products and tables that stay in float.
        float_bytes: what the quantised weights would be in the file's dtype.
        quantized_bytes: what they are, scales and zero points included.
        kept_bytes: what all other weights and constants are.
    """

    bits: int
    block_size: int
    symmetric: bool
    int8_activations: bool
    nodes: dict[str, int]
    kept: dict[str, tuple[str, ...]]
    float_bytes: int
    quantized_bytes: int
    kept_bytes: int


def together(found: Sequence[QuantizedWeights | None]) -> QuantizedWeights | None:
    """What became of the weights of several files; a weight of two of them counts in both."""
    first, *others = found
    if first is None or not others:
        return first
    rest = together(others)
    assert rest is not None, "files of one export are quantised alike"
    kept = {reason: (*first.kept.get(reason, ()), *rest.kept.get(reason, ())) for reason in {**first.kept, **rest.kept}}
    return replace(
        first,
        nodes=dict(Counter(first.nodes) + Counter(rest.nodes)),
        kept=kept,
        float_bytes=first.float_bytes + rest.float_bytes,
        quantized_bytes=first.quantized_bytes + rest.quantized_bytes,
        kept_bytes=first.kept_bytes + rest.kept_bytes,
    )


def mark_small(graph: ir.Graph, quant: Quantization) -> None:
    """Mark the weights that stay in float for their size, before others that read the same input are joined with them."""
    for value in graph.initializers.values():
        if value.shape is None or len(value.shape) != 2 or KEEP_FLOAT in value.meta:
            continue
        if min(value.shape.numpy()) < quant.smallest_side:
            value.meta[KEEP_FLOAT] = f"a side below {quant.smallest_side}: few bytes, often a gate or a decay"


def quantize_weights(graph: ir.Graph, target: Target) -> QuantizedWeights | None:
    """Quantise the weights of a graph as its target says, in place; None where the target says nothing."""
    quant = target.quant
    if quant is None:
        return None
    work = _Pass(graph, quant, target)
    work.run()
    return QuantizedWeights(
        bits=quant.bits,
        block_size=quant.block_size,
        symmetric=quant.symmetric,
        int8_activations=work.rounds_activations,
        nodes=dict(work.nodes),
        kept={reason: tuple(names) for reason, names in work.kept.items()},
        float_bytes=sum(bytes_of(value) for value in work.replaced),
        quantized_bytes=work.quantized_bytes,
        kept_bytes=sum(bytes_of(value) for value in graph.initializers.values()) - work.quantized_bytes,
    )


@dataclass(slots=True)
class _Pass:
    graph: ir.Graph
    quant: Quantization
    target: Target
    nodes: Counter[str] = field(default_factory=lambda: Counter[str]())
    kept: dict[str, list[str]] = field(default_factory=dict)
    replaced: list[ir.Value] = field(default_factory=list)
    quantized_bytes: int = 0
    _stored: dict[ir.Value, Stored] = field(default_factory=dict)
    _heads: set[ir.Node] = field(default_factory=lambda: set[ir.Node]())
    _head_weights: set[ir.Value | None] = field(default_factory=lambda: set[ir.Value | None]())

    @property
    def rounds_activations(self) -> bool:
        """On the CPU that is several times faster, and 8 bits have no other fast kernel there; CUDA ignores it."""
        return self.target.provider == "cpu" or self.quant.bits == 8

    def run(self) -> None:
        self._heads = _head_products(self.graph)
        self._head_weights = {node.inputs[1] for node in self._heads}
        for node in list(self.graph.all_nodes()):
            match node.op_type:
                case "MatMul" | "FusedMatMul":
                    self._product(node)
                case "MoE":
                    self._experts(node)
                case "Gather":
                    self._table(node)
                case _:
                    pass
        for value in self._stored:
            if not value.uses():
                assert value.name is not None
                del self.graph.initializers[value.name]
            self.replaced.append(value)

    def _product(self, node: ir.Node) -> None:
        """MatMul with a weight (K, N), FusedMatMul with a tied table (N, K)."""
        x, weight = node.inputs[0], node.inputs[1]
        turned = node.op_type == "MatMul"
        if x is None or weight is None or weight.const_value is None or weight.shape is None:
            return
        if not turned and node.attributes["transB"].as_int() != 1:
            return
        shape = weight.shape.numpy()
        if node in self._heads and not self.quant.head:
            self._keep("the head, as was asked for", weight)
        elif len(shape) != 2:
            self._keep("a stack of matrices, one a head: MatMulNBits takes one", weight)
        elif (stored := self._matrix(weight, turned=turned)) is not None:
            matrix = stored.source.matrix
            numbers = {"K": matrix.columns, "N": matrix.rows, "bits": self.quant.bits, "block_size": matrix.block_size}
            if self.rounds_activations:
                numbers["accuracy_level"] = _INT8_ACTIVATIONS
            self._replace(node, "MatMulNBits", [x, stored.packed, stored.scales, stored.zero_points], numbers)

    def _experts(self, node: ir.Node) -> None:
        """MoE's two stacks (E, N, K), each expert's rows quantised like a matrix's."""
        x, router, first, first_bias, second, second_bias = (*node.inputs, None)[:6]
        assert first is not None
        assert second is not None
        limits = _EXPERTS[self.target.onnxruntime, self.target.provider]
        stacks = [weight.shape.numpy() for weight in (first, second) if weight.shape is not None]
        columns = [columns for _, _, columns in stacks]
        size = _block_size(max(self.quant.block_size, limits.min_block), columns)
        if any(count % limits.tile for count in columns) or size is None or size < limits.min_block:
            reason = f"experts of {' and '.join(str(count) for count in columns)} inputs: {_multiple(limits)}"
            for weight in (first, second):
                self._keep(reason, weight)
            return
        parts: list[Stored] = []
        for weight, (experts, rows, count) in zip((first, second), stacks, strict=True):
            matrix = Matrix(rows=experts * rows, columns=count, turned=False, block_size=size)
            parts.append(self._store(weight, matrix, (experts, rows, count * self.quant.bits // 8), (experts, rows)))
        one, two = parts
        numbers: dict[str, Any] = {
            **node.attributes,
            "expert_weight_bits": self.quant.bits,
            "block_size": size,
            # Bytes as they are described, not in the order that one provider's kernel likes.
            "weights_prepacked": 0,
        }
        if self.rounds_activations:
            numbers["accuracy_level"] = _INT8_ACTIVATIONS
        weights = [one.packed, one.scales, first_bias, two.packed, two.scales, second_bias]
        third = [None, None, None]
        self._replace(node, "QMoE", [x, router, *weights, *third, one.zero_points, two.zero_points], numbers)

    def _table(self, node: ir.Node) -> None:
        """Gather from a token table (N, K); a table that the head reads too is in the file once."""
        table, ids = node.inputs[0], node.inputs[1]
        if table is None or ids is None or table.const_value is None or not ids.is_graph_input():
            return
        if table.shape is None or len(table.shape) != 2:
            return
        shared = table in self._head_weights and self.quant.head
        if not (shared if self.quant.embedding is None else self.quant.embedding):
            asked = "as was asked for" if self.quant.embedding is False else "of which a token reads one row"
            self._keep(f"the embedding, {asked}", table)
            return
        stored = self._matrix(table, turned=False)
        if stored is None:
            return
        self.nodes["GatherBlockQuantized"] += 1
        path, matrix = _path(node), stored.source.matrix
        # Blocks are an axis of their own, as MatMulNBits wants them, so that one table serves both nodes.
        numbers = {"bits": self.quant.bits, "block_size": matrix.block_size, "gather_axis": 0, "quantize_axis": 2}
        scales = ir.Value(name=f"{path}/scales", type=stored.scales.type)
        blocks = ir.Value(name=f"{path}/blocks", type=stored.scales.type)
        column = constant(self.graph, "constants/last of three axes", 2)
        inputs = [stored.packed, ids, scales]
        if stored.zero_points is not None:
            name, shape = f"{table.name}.zero_points_by_byte", (matrix.rows, matrix.blocks, 1)
            inputs.append(initializer(self.graph, name, shape, UINT8, stored.source.points_by_byte))
            self.quantized_bytes += bytes_of(inputs[-1])
        assert node.graph is not None
        node.graph.insert_before(
            node,
            [
                ir.node("Unsqueeze", [stored.scales, column], outputs=[scales], name=f"{path}/Unsqueeze"),
                ir.node("GatherBlockQuantized", inputs, numbers, domain=MS, outputs=[blocks], name=f"{path}/Gather"),
            ],
        )
        width = constant(self.graph, f"constants/rows of {matrix.columns}", 0, 0, matrix.columns)
        self._replace(node, "Reshape", [blocks, width], {}, domain="")

    def _matrix(self, weight: ir.Value, *, turned: bool) -> Stored | None:
        """A matrix in the form that MatMulNBits reads; None where it stays in float, for a reason that is noted."""
        if weight in self._stored:
            return self._stored[weight]
        assert weight.shape is not None
        rows, columns = weight.shape.numpy()[::-1] if turned else weight.shape.numpy()
        size = _block_size(self.quant.block_size, (columns,))
        if KEEP_FLOAT in weight.meta:
            return self._keep(str(weight.meta[KEEP_FLOAT]), weight)
        if weight.dtype != self.target.ir_dtype:
            return self._keep("float32 in any file", weight)
        if size is None:
            return self._keep(f"its inputs are no multiple of {BLOCK_SIZES[0]}", weight)
        matrix = Matrix(rows=rows, columns=columns, turned=turned, block_size=size)
        return self._store(weight, matrix, (rows, matrix.blocks, size * self.quant.bits // 8), (rows,))

    def _store(self, weight: ir.Value, matrix: Matrix, packed: Sequence[int], rows: Sequence[int]) -> Stored:
        if weight not in self._stored:
            self._stored[weight] = store(self.graph, weight, self.quant, matrix, packed=packed, rows=rows)
            self.quantized_bytes += self._stored[weight].bytes
        return self._stored[weight]

    def _keep(self, reason: str, weight: ir.Value) -> None:
        names = self.kept.setdefault(reason, [])
        if weight.name not in names:
            names.append(weight.name or "")

    def _replace(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        domain: str = MS,
    ) -> None:
        """A node of another type that gives what ``node`` gave, in its place."""
        old = node.outputs[0]
        new = ir.Value(name=old.name, type=old.type, shape=old.shape)
        last = max(number for number, value in enumerate(inputs) if value is not None)
        replacement = ir.node(
            op_type, inputs[: last + 1], attributes, domain=domain, outputs=[new], name=f"{_path(node)}/{op_type}"
        )
        assert node.graph is not None
        node.graph.insert_before(node, replacement)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        node.graph.remove(node, safe=True)
        if domain:
            self.nodes[op_type] += 1


def _path(node: ir.Node) -> str:
    return (node.name or "").rpartition("/")[0]


def _multiple(limits: _ExpertLimits) -> str:
    return f"QMoE wants multiples of {max(limits.tile, limits.min_block)}"


def _block_size(wanted: int, columns: Sequence[int]) -> int | None:
    """The largest power of two up to ``wanted`` that divides every count of inputs; None where it would be too small."""
    size = wanted
    while any(count % size for count in columns):
        size //= 2
    return size if size >= BLOCK_SIZES[0] else None


def _head_products(graph: ir.Graph) -> set[ir.Node]:
    """The products with a weight that the logits come from."""
    found: set[ir.Node] = set()
    open_values = [value for value in graph.outputs if value.name == "logits"]
    while open_values:
        node = open_values.pop().producer()
        if node is None:
            continue
        if node.op_type in ("MatMul", "FusedMatMul"):
            found.add(node)
        elif node.op_type in _AFTER_HEAD:
            open_values += [value for value in node.inputs if value is not None]
    return found
