"""A user's own torch module: exported by the lowering that its class brings, or refused."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from archc import registry
from archc.errors import GraphError
from archc.ir.values import Node
from archc.ops.opaque import Opaque, lowering_name
from archc_exporters.onnx.context import Lowering


def opaque(ctx: Lowering, node: Node, *inputs: ir.Value) -> Any:
    """What the class's own lowering gives; it is called as every lowering is.

    Raises:
        GraphError: the class brings none.
    """
    op = node.op
    assert isinstance(op, Opaque)
    name = lowering_name(op.module)
    lowering = registry.find("onnx", name)
    if lowering is None:
        raise GraphError(
            f"{ctx.path}: {op.module} is an opaque torch module, and brings no lowering to ONNX; register one as "
            f'"{name}" in the entry-point group archc.onnx'
        )
    ctx.note(f"opaque, by the lowering that {op.module} brings")
    return lowering(ctx, node, *inputs)
