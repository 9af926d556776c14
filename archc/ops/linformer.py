"""Attention to keys and values that are projected along the text to a fixed number of rows: Linformer (arXiv 2006.04768)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.errors import GraphError
from archc.ir.op import Form, Op, Pairs, op
from archc.ir.size import BATCH, Dim
from archc.ir.tape import Held, Tape
from archc.ir.values import TensorType
from archc.ops.softmax import attend, for_products, to_heads


@op
class LinformerAttention(Op):
    """``softmax(scale q (E k)^T) (F v)`` a head; inputs (q, k, v, e, f[, padding]), no cache.

    ``e`` and ``f`` (batch, seq, ``num_rows``) hold the column of E and F of each token, so that a text shorter than they are
    long uses those of its positions alone; heads x num_rows wide, they have columns for each head. ``padding`` (batch, seq),
    int64, is 1 for tokens and 0 for what is left out of the sums.
    """

    op_name = "linformer_attention"
    pieces = (("num_heads", "heads"),)
    num_heads: int
    head_dim: int
    num_rows: int
    scale: float
    has_padding: bool = True

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        q, k, v, e, f = inputs[:5]
        width = self.num_heads * self.head_dim
        widths = (self.num_rows, self.num_heads * self.num_rows)
        if (q.width, k.width, v.width) != (width,) * 3 or e.width not in widths or f.width not in widths:
            given = ", ".join(str(each) for each in inputs[:5])
            raise GraphError(
                f"linformer_attention: {given} don't fit {self.num_heads} heads of {self.head_dim} and {self.num_rows} rows"
            )
        return (q.with_width(width, "heads"),)

    def flops(self, inputs: Sequence[TensorType], form: Form, pairs: Pairs) -> Dim:
        # Keys and values to their rows, scores with them, and their sum: four products of tokens, rows and width.
        return BATCH * inputs[1].shape[1] * (8 * self.num_rows * self.num_heads * self.head_dim)

    def saves(self, tape: Tape, inputs: Sequence[Held], weights: Mapping[str, Held]) -> Held:
        q, k, v, e, f = inputs[:5]
        keys, values = self._projected(tape, k, e), self._projected(tape, v, f)
        return attend(tape, to_heads(tape, q, self.head_dim), keys, values)

    def _projected(self, tape: Tape, x: Held, columns: Held) -> Held:
        """Rows of the projection (batch, heads, rows, width): sums of x by columns that a batch may share, or heads too."""
        x = to_heads(tape, x, self.head_dim)
        batch, heads, seq, width = x.shape
        shape = (batch, heads, self.num_rows, seq)
        # Columns of each head are copied for every text; those that heads share are one matrix for all products.
        is_one = columns.width == self.num_rows or tape.number(batch) == 1
        rows = tape.view(columns, shape) if is_one else tape.copy(columns, shape)
        return tape.matmul(rows, for_products(tape, x), (batch, heads, self.num_rows, width))
