"""Linear layers that read the same input become one MatMul over weights that stand side by side.

Queries, keys and values go to GroupQueryAttention as they leave it, and streams of a short convolution need no Concat; others
are split again where the target is a GPU, whose launches a short step pays for. On the CPU a Split would copy what the product
has just written, and costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from archc_exporters.onnx.context import KEEP_FLOAT
from archc_exporters.onnx.target import Provider
from archc_exporters.onnx.weights import joined


@dataclass(frozen=True)
class _Linear:
    """A MatMul with a weight of its own (in, out), the Add of its bias if it has one, and what they give."""

    matmul: ir.Node
    bias: ir.Node | None

    @property
    def weight(self) -> ir.Value:
        return _given(self.matmul.inputs[1])

    @property
    def output(self) -> ir.Value:
        return (self.bias or self.matmul).outputs[0]

    @property
    def width(self) -> int:
        assert self.weight.shape is not None
        width = self.weight.shape[1]
        assert isinstance(width, int)
        return width


def pack_linears(graph: ir.Graph, provider: Provider) -> dict[str, int]:
    """Join them in place; kind of group -> how many linears went into groups of that kind."""
    counts: dict[str, int] = {}
    for linears in _readers_of_one_input(graph):
        for kind, consumer, members in _groups(linears):
            if kind == "split" and provider == "cpu":
                continue
            packed = _packed(graph, members)
            if kind == "attention":
                _feed_attention(consumer, packed)
            elif kind == "conv":
                consumer.outputs[0].replace_all_uses_with(packed)
                graph.remove(consumer, safe=True)
            else:
                _split(graph, members, packed)
            _remove(graph, members)
            counts[kind] = counts.get(kind, 0) + len(members)
    return counts


def _readers_of_one_input(graph: ir.Graph) -> list[list[_Linear]]:
    """Linears by input, in the order of the graph; what must stay in float is not joined with what need not."""
    found: dict[tuple[ir.Value, bool, object], list[_Linear]] = {}
    for node in graph:
        if node.op_type != "MatMul" or node.domain:
            continue
        x, weight = (_given(value) for value in node.inputs)
        if not _is_own(weight, rank=2):
            continue
        linear = _Linear(node, _bias_of(node))
        found.setdefault((x, linear.bias is not None, weight.meta.get(KEEP_FLOAT)), []).append(linear)
    return [linears for linears in found.values() if len(linears) > 1]


def _is_own(value: ir.Value, *, rank: int) -> bool:
    """Whether it is an initializer of this rank that one node reads."""
    return (
        value.const_value is not None
        and value.shape is not None
        and len(value.shape) == rank
        and len(value.uses()) == 1
    )


def _bias_of(matmul: ir.Node) -> ir.Node | None:
    node = _only_reader(matmul.outputs[0])
    if node is None or node.op_type != "Add" or node.inputs[0] is not matmul.outputs[0]:
        return None
    return node if _is_own(_given(node.inputs[1]), rank=1) else None


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _groups(linears: Sequence[_Linear]) -> Iterator[tuple[str, ir.Node, Sequence[_Linear]]]:
    """(attention, conv or split; the node that reads them all; the linears in the order that it wants them)."""
    rest = list(linears)
    for linear in linears:
        reader = _only_reader(linear.output)
        if linear not in rest or reader is None:
            continue
        wanted = {
            "GroupQueryAttention": ("attention", reader.inputs[:3]),
            "Concat": ("conv", reader.inputs),
        }.get(reader.op_type)
        if wanted is None:
            continue
        members = [other for value in wanted[1] for other in rest if other.output is value]
        if len(members) == len(wanted[1]) > 1 and all(_only_reader(member.output) is reader for member in members):
            yield wanted[0], reader, members
            rest = [other for other in rest if other not in members]
    if len(rest) > 1:
        yield "split", rest[0].matmul, rest


def _packed(graph: ir.Graph, members: Sequence[_Linear]) -> ir.Value:
    """One MatMul, and one Add where they have biases, before the first of the members."""
    first = members[0].matmul
    x = _given(first.inputs[0])
    weight = _side_by_side(graph, [member.weight for member in members], axis=1)
    matmul = _node("MatMul", [x, weight], members, first.outputs[0])
    added = [matmul]
    if members[0].bias is not None:
        biases = [_given(member.bias.inputs[1]) for member in members if member.bias is not None]
        added.append(_node("Add", [matmul.outputs[0], _side_by_side(graph, biases, axis=0)], members, first.outputs[0]))
    graph.insert_before(first, added)
    return added[-1].outputs[0]


def _side_by_side(graph: ir.Graph, values: Sequence[ir.Value], axis: int) -> ir.Value:
    tensors = [value.const_value for value in values]
    name = _joint_name([value.name or "" for value in values])
    tensor = joined(name, [tensor for tensor in tensors if tensor is not None], axis)
    value = ir.Value(name=name, type=values[0].type, shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)
    value.meta.update(values[0].meta)
    graph.initializers[name] = value
    return value


def _feed_attention(attention: ir.Node, packed: ir.Value) -> None:
    attention.replace_input_with(0, packed)
    attention.replace_input_with(1, None)
    attention.replace_input_with(2, None)


def _split(graph: ir.Graph, members: Sequence[_Linear], packed: ir.Value) -> None:
    """The packed output in parts again, in finer ones where a part was split further."""
    sizes: list[int] = []
    outputs: list[ir.Value] = []
    for member in members:
        inner = _only_reader(member.output)
        finer = _sizes_of(inner)
        if inner is not None and finer is not None:
            sizes += finer
            old = list(inner.outputs)
            new = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in old]
            for before, after in zip(old, new, strict=True):
                before.replace_all_uses_with(after)
            graph.remove(inner, safe=True)
        else:
            sizes.append(member.width)
            new = [ir.Value(name=member.output.name, type=member.output.type, shape=member.output.shape)]
            member.output.replace_all_uses_with(new[0])
        outputs += new
    axis = ir.Attr("axis", ir.AttributeType.INT, -1)
    name = f"{_path(members)}/Split"
    node = ir.Node("", "Split", [packed, _sizes(graph, sizes)], [axis], outputs=outputs, name=name)
    producer = packed.producer()
    assert producer is not None
    graph.insert_after(producer, node)


def _sizes_of(node: ir.Node | None) -> list[int] | None:
    """Sizes of a Split of the last dimension; None where the node is no such."""
    if node is None or node.op_type != "Split" or node.attributes["axis"].as_int() != -1:
        return None
    tensor = _given(node.inputs[1]).const_value
    return None if tensor is None else [int(size) for size in tensor.numpy()]


def _sizes(graph: ir.Graph, sizes: Sequence[int]) -> ir.Value:
    name = "constants/split " + "+".join(str(size) for size in sizes)
    if name not in graph.initializers:
        tensor = ir.Tensor(np.array(sizes, np.int64), name=name)
        graph.initializers[name] = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([len(sizes)]), const_value=tensor
        )
    return graph.initializers[name]


def _remove(graph: ir.Graph, members: Sequence[_Linear]) -> None:
    for member in members:
        initializers = [member.weight]
        if member.bias is not None:
            initializers.append(_given(member.bias.inputs[1]))
            graph.remove(member.bias, safe=True)
        graph.remove(member.matmul, safe=True)
        for value in initializers:
            assert value.name is not None
            del graph.initializers[value.name]


def _node(op_type: str, inputs: Sequence[ir.Value], members: Sequence[_Linear], like: ir.Value) -> ir.Node:
    name = f"{_path(members)}/{op_type}"
    output = ir.Value(name=name, type=like.type)
    return ir.Node("", op_type, list(inputs), outputs=[output], name=name)


def _path(members: Sequence[_Linear]) -> str:
    paths = [(member.matmul.name or "").rpartition("/")[0] for member in members]
    # Linears of one op, as gate and up of experts, have one path, and nodes on it.
    return _joint_name(paths) if len(set(paths)) > 1 else f"{paths[0]}/joined"


def _joint_name(names: Sequence[str]) -> str:
    """One name for what ``layers.0.mixer.q_proj.weight`` and its neighbours become: their differing parts joined by ``+``."""
    parts = [name.split(".") for name in names]
    if len({len(part) for part in parts}) != 1:
        return "+".join(names)
    return ".".join("+".join(dict.fromkeys(column)) for column in zip(*parts, strict=True))


def _given(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value
