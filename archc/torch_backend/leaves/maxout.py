"""Maxout as a plain function."""

from __future__ import annotations

from torch import Tensor

from archc.ir.values import Node
from archc.ops.maxout import Maxout
from archc.torch_backend.context import Context, Function


def largest(x: Tensor, pool_size: int) -> Tensor:
    """(…, D) -> (…, D / pool_size)."""
    return x.unflatten(-1, (-1, pool_size)).max(-1).values


def maxout(node: Node, context: Context) -> Function:
    assert isinstance(node.op, Maxout)
    return Function(largest, {"pool_size": node.op.pool_size})
