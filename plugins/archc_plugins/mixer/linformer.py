"""Linformer's attention."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt

from archc.errors import GraphError
from archc.families import Mixer
from archc.graph.vocabulary import Builder
from archc.ir.values import Value
from archc.ops.linformer import LinformerAttention
from archc.ops.position import LearnedPositions
from archc.spec.values import Scale


class Linformer(Mixer):
    """Linformer, arXiv 2006.04768: ``softmax(q (E k)^T / sqrt(head_dim)) (F v)``, keys and values projected along the text.

    E and F are learned, projected_length x max_position_embeddings, so the model has that length; of a shorter text the columns
    of its positions are used, and padding is left out of the sums. It looks both ways (`mask: bidirectional`) and keeps nothing
    between calls. Its keys are sums over positions, so a position can be added to the embedding, and can't turn them.
    """

    masks: ClassVar[tuple[str, ...]] = ("bidirectional",)
    keeps_rows: ClassVar[bool] = False
    refuses_slopes: ClassVar[bool] = True

    num_heads: PositiveInt
    """Heads."""
    head_dim: PositiveInt
    """Channels of a query, key and value head."""
    projected_length: PositiveInt
    """Rows that keys and values are projected to: the paper's k."""
    sharing: Literal["none", "headwise", "key_value", "layerwise"] = "headwise"
    """What has an E and an F of its own. none: each head; headwise: each layer; key_value: each layer, and F is E; layerwise:
    the stack, and F is E."""
    softmax_scale: Scale | None = None
    """Factor on the scores. Default: 1/sqrt(head_dim)."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    o_bias: bool = False
    """Bias on the output projection."""

    def define(self, g: Builder, x: Value) -> Value:
        width = self.num_heads * self.head_dim
        q, k, v = (g.linear(f"{n}_proj", x, width, bias=self.qkv_bias, axis="heads") for n in "qkv")
        if self.position.rotate(g, k, head_dim=self.head_dim) is not k:
            raise GraphError(
                f"{g.path}: linformer sums keys over positions, so none can turn with its own; state another position"
            )
        e, f = self._columns(g)
        names = {**self.numbers(), "hidden_size": x.width}
        op = LinformerAttention(
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            num_rows=self.projected_length,
            scale=self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale.resolve(names),
            has_padding=g.padding is not None,
        )
        padding = () if g.padding is None else (g.padding,)
        (o,) = g.emit(op, (q, k, v, e, f, *padding), name="attention")
        return g.linear("o_proj", o, x.width, bias=self.o_bias)

    def _columns(self, g: Builder) -> tuple[Value, Value]:
        """The columns of E and F at the text's positions, which are rows of a table as learned positions are."""
        if self.sharing == "layerwise":
            if g.max_position_embeddings is None:
                raise GraphError(f"{g.path}: a projection of the text needs its length; state max_position_embeddings")
            op = LearnedPositions(num_positions=g.max_position_embeddings, width=self.projected_length)
            (e,) = g.hoist(op, (g.sources["positions"],), name="length_proj")
            return e, e
        if self.sharing == "key_value":
            e = g.learned_positions("length_proj", self.projected_length)
            return e, e
        rows = self.projected_length * (self.num_heads if self.sharing == "none" else 1)
        return g.learned_positions("k_length_proj", rows), g.learned_positions("v_length_proj", rows)
