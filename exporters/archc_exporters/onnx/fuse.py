"""What one op's lowering can't see: a residual sum and the norm that reads it become one node."""

from __future__ import annotations

import onnx_ir as ir

SAME_SHAPE = "archc.same_shape"
"""Mark on an Add whose operands have one shape, so that neither is a bias."""
_MS, _FUSED = "com.microsoft", "SkipSimplifiedLayerNormalization"


def fuse_residual_norms(graph: ir.Graph) -> int:
    """Add followed by RMSNormalization becomes SkipSimplifiedLayerNormalization, which gives the sum as well; how many did.

    onnxruntime has the kernel and does not find the pattern by itself.
    """
    count = 0
    for norm in list(graph):
        if norm.op_type != "RMSNormalization" or norm.domain:
            continue
        x, weight = norm.inputs
        add = None if x is None else x.producer()
        if x is None or add is None or add.op_type != "Add" or not add.meta.get(SAME_SHAPE):
            continue
        _replace(graph, add, norm, weight)
        count += 1
    return count


def _replace(graph: ir.Graph, add: ir.Node, norm: ir.Node, weight: ir.Value | None) -> None:
    total, normed = add.outputs[0], norm.outputs[0]
    # Three outputs of the four: the mean and the inverse deviation between are for training only and stay unnamed.
    outputs = [ir.Value(name=name, type=total.type) for name in (normed.name, "", "", total.name)]
    outputs[0].shape, outputs[3].shape = normed.shape, total.shape
    path = (norm.name or "").rpartition("/")[0]
    fused = ir.node(
        _FUSED,
        [*add.inputs, weight],
        {"epsilon": norm.attributes["epsilon"].as_float()},
        domain=_MS,
        outputs=outputs,
        name=f"{path}/{_FUSED}",
    )
    graph.insert_before(add, fused)
    for old, new in ((normed, outputs[0]), (total, outputs[3])):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove([norm, add], safe=True)


def cast_before_split(graph: ir.Graph) -> None:
    """A Split whose parts are all cast alike becomes one Cast and a Split."""
    for split in list(graph):
        if split.op_type != "Split" or split.domain:
            continue
        casts = [[use.node for use in output.uses()] for output in split.outputs]
        if any(len(readers) != 1 or readers[0].op_type != "Cast" for readers in casts):
            continue
        readers = [readers[0] for readers in casts]
        dtypes = {reader.outputs[0].dtype for reader in readers}
        source = split.inputs[0]
        if len(dtypes) != 1 or source is None or any(reader.outputs[0].is_graph_output() for reader in readers):
            continue
        dtype = dtypes.pop()
        assert dtype is not None
        name = f"{split.name}/Cast"
        cast = ir.node(
            "Cast", [source], {"to": dtype}, name=name, outputs=[ir.Value(name=name, type=ir.TensorType(dtype))]
        )
        graph.insert_before(split, cast)
        split.replace_input_with(0, cast.outputs[0])
        for output, reader in zip(split.outputs, readers, strict=True):
            output.type = ir.TensorType(dtype)
            reader.outputs[0].replace_all_uses_with(output)
        graph.remove(readers, safe=True)
