"""The pick of each row's last token, moved up as far as tokens don't meet: what stands behind it sees one token a row.

In a last layer that is everything behind the mixer's attention or recurrence: its output projection and the feed-forward.
"""

from __future__ import annotations

import onnx_ir as ir

LAST_TOKEN = "archc.last_token"
"""Mark on the node that picks the last tokens, (batch, seq, width) to (batch, 1, width)."""
_BY_TOKEN = frozenset(
    {
        "Add",
        "Cast",
        "Div",
        "Gelu",
        "LayerNormalization",
        "Max",
        "Min",
        "Mul",
        "QuickGelu",
        "RMSNormalization",
        "GatedRMSNorm",
        "Relu",
        "Sigmoid",
        "Softplus",
        "Sub",
        "Tanh",
    }
)
"""Ops whose every token of output comes of the same token of their inputs alone, whatever their attributes here."""


def pick_last_token_early(graph: ir.Graph) -> None:
    """Move the pick above all nodes that compute token by token and are read by nobody else."""
    pick = next((node for node in graph if node.meta.get(LAST_TOKEN)), None)
    if pick is None:
        return
    behind = _behind(graph, pick)
    if not behind:
        return
    source, index = pick.inputs
    assert source is not None
    assert index is not None
    picked: dict[ir.Value, ir.Value] = {}
    first = next(node for node in graph if node in behind)
    for node in list(behind):
        for place, value in enumerate(node.inputs):
            if value is None or not _has_tokens(value) or value.producer() in behind:
                continue
            if value not in picked:
                picked[value] = _picked(graph, pick, value, index, len(picked))
            node.replace_input_with(place, picked[value])
    pick.outputs[0].replace_all_uses_with(source, replace_graph_outputs=True)
    graph.remove(pick, safe=True)
    graph.sort()
    assert first.graph is graph


def _behind(graph: ir.Graph, pick: ir.Node) -> dict[ir.Node, None]:
    """Nodes before the pick whose outputs only the pick or others of them read, last first."""
    found: dict[ir.Node, None] = {}
    for node in reversed(list(graph)):
        readers = [use.node for output in node.outputs for use in output.uses()]
        if not readers or any(output.is_graph_output() for output in node.outputs):
            continue
        if all(reader is pick or reader in found for reader in readers) and _is_by_token(node):
            found[node] = None
    return found


def _is_by_token(node: ir.Node) -> bool:
    if node.op_type in _BY_TOKEN:
        return True
    others = node.inputs[1:]
    constant = all(value is None or value.const_value is not None for value in others)
    if node.op_type in ("MatMul", "FusedMatMul"):
        return constant
    if node.op_type == "Split":
        return constant and node.attributes["axis"].as_int() == -1
    # A reshape that keeps the first two dimensions.
    shape = None if len(others) != 1 or others[0] is None else others[0].const_value
    return node.op_type == "Reshape" and shape is not None and [int(size) for size in shape.numpy()[:2]] == [0, 0]


def _has_tokens(value: ir.Value) -> bool:
    """Whether it is of this call's tokens, and no weight or constant."""
    return value.const_value is None


def _picked(graph: ir.Graph, pick: ir.Node, value: ir.Value, index: ir.Value, number: int) -> ir.Value:
    name = f"{pick.name}/{number}"
    node = ir.node(
        "GatherND",
        [value, index],
        {"batch_dims": 1},
        name=name,
        outputs=[ir.Value(name=name, type=value.type)],
    )
    graph.insert_before(pick, node)
    return node.outputs[0]
