"""Attention to projected keys and values."""

# Shape suffixes: B batch, S tokens, N heads, D head_dim, R rows of the projection.

from __future__ import annotations

from torch import Tensor, nn

from archc.ir.op import Pairs
from archc.ir.values import Node
from archc.ops import linformer as ops
from archc.torch_backend.context import Context
from archc.torch_backend.leaves.attention import from_heads, to_heads
from archc.torch_backend.leaves.softmax import attend
from archc.torch_backend.twins.attention import twin_of


class LinformerAttention(nn.Module):
    """Keys and values as sums over the text, then attention to those; it keeps nothing."""

    def __init__(self, op: ops.LinformerAttention, twin: Pairs | None) -> None:
        super().__init__()
        self.head_dim, self.num_rows, self.scale, self.twin = op.head_dim, op.num_rows, op.scale, twin
        self.kernel = attend if twin is None else twin_of(twin)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor, padding: Tensor | None = None) -> Tensor:
        if padding is not None:
            e, f = (x * padding.unsqueeze(-1).to(x.dtype) for x in (e, f))
        keys, values = self._projected(k, e), self._projected(v, f)
        q_BNSD = to_heads(q, self.head_dim)
        return from_heads(self.kernel(q_BNSD, keys, values, scale=self.scale, mask=None, soft_cap=None))

    def _projected(self, x: Tensor, columns: Tensor) -> Tensor:
        """(B, S, N x D) by (B or 1, S, R) or (B or 1, S, N x R) -> (B, N, R, D)."""
        rows = to_heads(columns, self.num_rows).transpose(2, 3)
        x_BNSD = to_heads(x, self.head_dim)
        if self.twin is None:
            return rows @ x_BNSD
        return (rows.double().expand(*x_BNSD.shape[:2], -1, -1) @ x_BNSD.double()).to(x.dtype)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, rows={self.num_rows}, scale={self.scale:.6g}"


def linformer_attention(node: Node, context: Context) -> nn.Module:
    assert isinstance(node.op, ops.LinformerAttention)
    return LinformerAttention(node.op, context.twin)
